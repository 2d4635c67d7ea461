// SPDX-License-Identifier: MIT
#pragma once
// Exchange of the ranks' work times per step, asynchronously.
#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/core/device.h"

namespace tessera::programs {

// Every rank calls tell() and read() alternately, once per step.
class RankTimes {
 public:
  explicit RankTimes(Communicator& world);  // collective

  // Collective. work_s: seconds this rank worked in the step, without waiting for others.
  void tell(double work_s);
  // The last told times of all ranks; empty if none. Waits until all ranks have told.
  std::vector<double> read();

 private:
  Communicator& world_;
  c10::Stream stream_;      // side stream
  at::Tensor mine_, all_;   // on the world's device
  at::Tensor told_, read_;  // on the host
  Work work_;
  Marker here_;
  bool under_way_ = false;
};

}  // namespace tessera::programs
