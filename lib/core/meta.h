// SPDX-License-Identifier: MIT
#pragma once
// Meta tensors that stand for tensors of a device: a block that runs on them makes the same
// allocations and computes nothing.
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "tessera/core/not_copied.h"

namespace tessera {

// Sets the device kind that this thread's meta tensors stand for; the default is the CPU. Scopes
// nest.
class MetaStandsFor : NotCopied {
 public:
  explicit MetaStandsFor(at::DeviceType type);
  ~MetaStandsFor();

 private:
  at::DeviceType previous_;
};

// True for a GPU, or meta that stands for one.
bool is_gpu(at::Device device);
// True for a tensor on a GPU, or standing for one there.
bool runs_on_gpu(const at::Tensor& x);

// One short line from LibTorch's message about an operator without a meta kernel.
std::string meta_refusal(std::string message);

// In its scope, this thread's meta allocations count as host memory.
class MetaOnHost : NotCopied {
 public:
  MetaOnHost();
  ~MetaOnHost();

 private:
  bool previous_;
};

// One allocation of a meta tensor. The observer assigns its purpose.
struct MetaAllocation {
  int64_t bytes = 0;
  bool on_host = false;
  size_t tag = 0;
  int64_t visit = 0;
};

// Observer of this thread's meta allocations; the innermost one is called. The end of a tensor that
// outlives it is not reported.
class MetaMemory {
 public:
  MetaMemory();
  virtual ~MetaMemory();
  MetaMemory(const MetaMemory&) = delete;
  MetaMemory& operator=(const MetaMemory&) = delete;

  // Called with bytes and on_host set.
  virtual void allocated(MetaAllocation& allocation) = 0;
  virtual void released(const MetaAllocation& allocation) = 0;

 private:
  MetaMemory* previous_;
};

// Whether this thread's meta allocations are observed, as in a dry run.
bool observes_meta();

// Counts bytes, each tensor rounded up to a multiple of `rounding`.
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
