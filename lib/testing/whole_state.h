// SPDX-License-Identifier: MIT
#pragma once
// What a checkpoint does, in memory: puts the pieces of all ranks together and cuts them anew.
#include <ATen/core/Tensor.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/checkpoint/state.h"

namespace tessera::testing {

// The state of a run as whole tensors on the host. Ranks may use it at the same time.
class WholeState {
 public:
  // Copies a rank's pieces. Throws Error(kInternal) for a piece that is not what its slice says, or
  // that has other bytes than another rank's for the same elements.
  void take(const std::vector<StateTensor>& pieces);
  // Once all ranks have been here: the first tensor with an element that is not there once, where
  // replicas of n ranks are there once for 1/n each; empty when there is none.
  std::string problem() const;
  // Writes a rank's pieces; throws Error(kInternal) for those that nobody had.
  void give(const std::vector<StateTensor>& pieces) const;
  // By "name kind", such as "h.0.up.weight exp_avg", in whole shapes.
  std::map<std::string, at::Tensor> tensors() const;

 private:
  struct Whole {
    std::vector<int64_t> shape;
    at::Tensor values, shares;  // [elements]; how often each is there
  };
  mutable std::mutex mutex_;
  std::map<std::string, Whole> wholes_;
};

}  // namespace tessera::testing
