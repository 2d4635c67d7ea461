// SPDX-License-Identifier: MIT
#pragma once
// State of a step, evaluation or prediction in progress.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/ops/fp8.h"
#include "tessera/comm/communicator.h"
#include "tessera/core/micro_batch.h"

namespace tessera {

struct StepState {
  std::vector<MicroBatch> micro_batches;
  std::vector<uint64_t> seeds;  // of the micro-batches (BlockContext); none: 0
  bool with_gradients = false, with_scores = false;
  bool accumulates = false;  // BackwardOptions
  bool is_pass = false;      // a pass of Strategy::forward()
  size_t pass_kind = 0;      // property of such a pass that ranks must share
  at::Tensor loss_gradient;  // d(objective)/d(loss sum), equal for every micro-batch
  at::Tensor sums;           // sum of the loss block's outputs: fp64 [k]
  std::shared_ptr<ops::Fp8Weights> fp8_weights;  // BlockContext
  std::shared_ptr<const ops::Fp8Codes> codes;    // stored or gathered ones; constant
  Work sums_work;                                // reduction of sums over the data axis

  const char* phase() const {
    return with_gradients || is_pass ? "forward" : with_scores ? "prediction" : "evaluation";
  }
  // Hash of everything that ranks must have in common.
  uint64_t kind() const {
    const auto count = static_cast<uint64_t>(micro_batches.size());
    return ((count * 2 + (with_gradients ? 1 : 0)) * 2 + (accumulates ? 1 : 0)) * 2 +
           (is_pass ? 1 + 16 * pass_kind : 0);
  }
};

}  // namespace tessera
