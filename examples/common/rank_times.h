#pragma once
// How long each rank of a job works in a step, told to all of them without anybody waiting for it.
#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera::programs {

// Every rank calls the two in turn, once a step.
class RankTimes {
 public:
  explicit RankTimes(Communicator& world) : world_(world) {}

  // Collective: seconds this rank has worked in the step, not counting what it waited for others.
  void tell(double work_s);
  // Of all ranks, as told last; empty when nothing was.
  std::vector<double> read();

 private:
  Communicator& world_;
  at::Tensor mine_, all_;
  Work work_;
};

}  // namespace tessera::programs
