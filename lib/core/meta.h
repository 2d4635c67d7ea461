// SPDX-License-Identifier: MIT
#pragma once
// Tensors without memory (meta) that stand for those of a device: a block that runs on them
// allocates what it would allocate there, and computes nothing.
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "tessera/core/not_copied.h"

namespace tessera {

// While it lives, meta tensors of this thread stand for tensors of this kind of device; else for
// those of the CPU. Scopes nest.
class MetaStandsFor : NotCopied {
 public:
  explicit MetaStandsFor(at::DeviceType type);
  ~MetaStandsFor();

 private:
  at::DeviceType previous_;
};

// On a GPU, or standing for a tensor there.
bool runs_on_gpu(const at::Tensor& x);

// Counts what this thread allocates of meta tensors while the counter lives; the innermost counts.
// Every tensor takes a multiple of `rounding` bytes.
class MetaMemoryCounter {
 public:
  explicit MetaMemoryCounter(int64_t rounding = 1);
  ~MetaMemoryCounter();
  MetaMemoryCounter(const MetaMemoryCounter&) = delete;
  MetaMemoryCounter& operator=(const MetaMemoryCounter&) = delete;

  int64_t live_bytes() const { return live_; }
  int64_t peak_bytes() const { return peak_; }
  void reset_peak() { peak_ = live_; }
  // What a tensor of so many bytes takes. Called by the allocator.
  int64_t allocate(int64_t bytes);
  void release(int64_t bytes) { live_ -= bytes; }

 private:
  int64_t rounding_, live_ = 0, peak_ = 0;
  MetaMemoryCounter* previous_;
};

}  // namespace tessera
