// SPDX-License-Identifier: MIT
#pragma once
// Room on the device for steps of every size.
#include <c10/core/Device.h>

#include <cstdint>
#include <span>

#include "tessera/core/micro_batch.h"

namespace tessera {

// A step that is larger than all before it asks the driver for memory many times, each of which
// takes as long as several kernels: segments of the first step's sizes serve no larger tensors. So
// when micro-batches turn out to differ in size, LibTorch's allocator gives back what it keeps and
// gets one block instead, from which steps of every size can be cut. Nothing happens on the CPU.
class StepRoom {
 public:
  // alone: no other rank waits for this one within a step but those of its data axis.
  StepRoom(at::Device device, bool alone) : device_(device), alone_(alone) {}
  // Before each step.
  void make_for(std::span<const MicroBatch> micro_batches);
  // The step before was dropped: its sizes say nothing.
  void drop_step() {
    if (!made_) tokens_before_ = 0;
  }

 private:
  at::Device device_;
  bool alone_, made_ = false;
  int64_t tokens_before_ = 0;  // of the first step's largest micro-batch
};

}  // namespace tessera
