// SPDX-License-Identifier: MIT
#pragma once
// A step, an evaluation or a prediction of a strategy between its begin() and its end.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/core/micro_batch.h"

namespace tessera {

struct StepUnderWay {
  std::vector<MicroBatch> micro_batches;
  std::vector<uint64_t> seeds;  // of the micro-batches (BlockContext); none: 0
  bool with_gradients = false, with_scores = false;
  bool accumulates = false;  // BackwardOptions
  bool is_pass = false;      // of Strategy::forward()
  size_t pass_kind = 0;      // of such a pass: what ranks must have in common
  at::Tensor loss_gradient;  // d(objective)/d(loss sum), the same for every micro-batch
  at::Tensor sums;           // of what the loss block gave: fp64 [k]
  Work sums_work;            // over the data axis

  const char* phase() const {
    return with_gradients || is_pass ? "forward" : with_scores ? "prediction" : "evaluation";
  }
  // What all ranks must have in common.
  uint64_t kind() const {
    const auto count = static_cast<uint64_t>(micro_batches.size());
    return ((count * 2 + (with_gradients ? 1 : 0)) * 2 + (accumulates ? 1 : 0)) * 2 +
           (is_pass ? 1 + 16 * pass_kind : 0);
  }
};

}  // namespace tessera
