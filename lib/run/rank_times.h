// SPDX-License-Identifier: MIT
#pragma once
// How long each rank of a job works in a step, told to all of them without anybody waiting for it.
#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/core/device.h"

namespace tessera::programs {

// Every rank calls the two in turn, once a step.
class RankTimes {
 public:
  explicit RankTimes(Communicator& world);  // collective

  // Collective: seconds this rank has worked in the step, not counting what it waited for others.
  void tell(double work_s);
  // Of all ranks, as told last; empty when nothing was. Waits until all have told.
  std::vector<double> read();

 private:
  Communicator& world_;
  c10::Stream stream_;      // beside what computes
  at::Tensor mine_, all_;   // on the world's device
  at::Tensor told_, read_;  // on the host
  Work work_;
  Marker here_;
  bool under_way_ = false;
};

}  // namespace tessera::programs
