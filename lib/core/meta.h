// SPDX-License-Identifier: MIT
#pragma once
// Tensors without memory (meta) that stand for those of a device: a block that runs on them
// allocates what it would allocate there, and computes nothing.
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

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

// A GPU, or meta that stands for one.
bool is_gpu(at::Device device);
// On a GPU, or standing for a tensor there.
bool runs_on_gpu(const at::Tensor& x);

// LibTorch's message about an operator that does not run on meta tensors, in one short line.
std::string meta_refusal(std::string message);

// While it lives, what this thread allocates of meta tensors is memory of the host.
class MetaOnHost : NotCopied {
 public:
  MetaOnHost();
  ~MetaOnHost();

 private:
  bool previous_;
};

// One allocation of a meta tensor. What it is for is up to who is told of it.
struct MetaAllocation {
  int64_t bytes = 0;
  bool on_host = false;
  size_t tag = 0;
  int64_t visit = 0;
};

// Told of what this thread allocates of meta tensors while it lives; the innermost is told. A
// tensor may outlive it: then nobody is told of its end.
class MetaMemory {
 public:
  MetaMemory();
  virtual ~MetaMemory();
  MetaMemory(const MetaMemory&) = delete;
  MetaMemory& operator=(const MetaMemory&) = delete;

  // It has its bytes and on_host.
  virtual void allocated(MetaAllocation& allocation) = 0;
  virtual void released(const MetaAllocation& allocation) = 0;

 private:
  MetaMemory* previous_;
};

// Counts bytes. Every tensor takes a multiple of `rounding` bytes.
class MetaMemoryCounter final : public MetaMemory {
 public:
  explicit MetaMemoryCounter(int64_t rounding = 1) : rounding_(rounding) {}

  int64_t live_bytes() const { return live_; }
  int64_t peak_bytes() const { return peak_; }
  void reset_peak() { peak_ = live_; }
  void allocated(MetaAllocation& allocation) override;
  void released(const MetaAllocation& allocation) override { live_ -= allocation.bytes; }

 private:
  int64_t rounding_, live_ = 0, peak_ = 0;
};

}  // namespace tessera
