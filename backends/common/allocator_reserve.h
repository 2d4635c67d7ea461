// SPDX-License-Identifier: MIT
#pragma once
// Allocator reserve for steps of different sizes.
#include <c10/core/Device.h>

#include <cstdint>
#include <span>

#include "tessera/core/micro_batch.h"

namespace tessera {

// Reserves allocator memory for micro-batches of different sizes. Segments of the first step's
// sizes serve no larger tensors. A larger step would call the driver many times, each as slow as
// several kernels. When sizes turn out to differ, LibTorch's allocator frees its cache and takes
// one large block instead. No effect on the CPU.
class AllocatorReserve {
 public:
  // alone: within a step only its data axis waits for this rank.
  AllocatorReserve(at::Device device, bool alone) : device_(device), alone_(alone) {}
  // Called before each step.
  void make_for(std::span<const MicroBatch> micro_batches);
  // The previous step was dropped: ignores its sizes.
  void drop_step() {
    if (!made_) tokens_before_ = 0;
  }

 private:
  at::Device device_;
  bool alone_, made_ = false;
  int64_t tokens_before_ = 0;  // largest micro-batch of the first step
};

}  // namespace tessera
