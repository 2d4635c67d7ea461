#pragma once
// A step, an evaluation or a prediction of a strategy between its begin() and its end.
#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/core/micro_batch.h"

namespace tessera {

struct StepUnderWay {
  std::vector<MicroBatch> micro_batches;
  bool with_gradients = false, with_scores = false;
  at::Tensor loss_gradient;  // d(objective)/d(loss sum), the same for every micro-batch
  at::Tensor sums;           // of what the loss block gave: fp64 [k]
  Work sums_work;            // over the data axis

  const char* phase() const {
    return with_gradients ? "forward" : with_scores ? "prediction" : "evaluation";
  }
};

}  // namespace tessera
