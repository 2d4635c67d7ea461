// SPDX-License-Identifier: MIT
#pragma once
// An in-memory checkpoint: joins the pieces of all ranks and cuts them anew.
#include <ATen/core/Tensor.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/checkpoint/state.h"

namespace tessera::testing {

// State of a run as unsharded host tensors. Thread-safe.
class WholeState {
 public:
  // Copies a rank's pieces. Throws Error(kInternal) for a piece that contradicts its slice, or
  // differs from another rank's bytes of the same elements.
  void take(const std::vector<StateTensor>& pieces);
  // After all ranks' take(): the first tensor with an element not present exactly once, where each
  // of n replicas counts 1/n; empty if none.
  std::string problem() const;
  // Fills a rank's pieces. Throws Error(kInternal) for missing ones.
  void give(const std::vector<StateTensor>& pieces) const;
  // By "name kind", such as "h.0.up.weight exp_avg", in full shapes.
  std::map<std::string, at::Tensor> tensors() const;

 private:
  struct Whole {
    std::vector<int64_t> shape;
    at::Tensor values, shares;  // [elements]; shares: how often each is present
  };
  mutable std::mutex mutex_;
  std::map<std::string, Whole> wholes_;
};

}  // namespace tessera::testing
