// SPDX-License-Identifier: MIT
#include "tessera/train/parallel_module.h"

#include <ATen/ATen.h>

#include <vector>

#include "lib/ops/update.h"
#include "tessera/backends/copy_weights.h"
#include "tessera/core/error.h"

namespace tessera {

ParallelModule::ParallelModule(Communicator& world, const ModelSpec& model,
                               const OptimizerFactory& optimizer, const ParallelConfig& config)
    : mesh_(world, {.data = world.size()}),
      device_(world.device()),
      strategy_(make_strategy(config, mesh_)) {
  strategy_->attach(model, {.device = device_}, optimizer);
}

at::Tensor ParallelModule::train_step(const at::Tensor& inputs, const at::Tensor& labels,
                                      const TrainStep& step) {
  return train_step(std::vector{make_micro_batch(inputs, labels)}, step);
}

at::Tensor ParallelModule::train_step(std::span<const MicroBatch> micro_batches,
                                      const TrainStep& step) {
  check(step.learning_rate.has_value(), ErrorCode::kInvalidArgument,
        "TrainStep: there is no learning_rate, so no weight would move; give one, "
        "train_step(inputs, labels, {.learning_rate = 1e-3})");
  check(step.max_grad_norm >= 0, ErrorCode::kInvalidArgument, "TrainStep: max_grad_norm is ",
        step.max_grad_norm, "; it must be positive, or 0 for no clipping");
  std::vector<MicroBatch> moved;
  for (const MicroBatch& micro_batch : micro_batches) moved.push_back(micro_batch.to(device_));
  const StepResult result = strategy_->forward_backward(moved);
  if (step.max_grad_norm > 0) {
    const at::Tensor unscaled = at::ones({}, at::dtype(at::kFloat).device(device_));
    strategy_->scale_gradients(
        ops::clipping(strategy_->grad_norm_squared(), unscaled, step.max_grad_norm).factor);
  }
  strategy_->optimizer_step(*step.learning_rate);
  return result.loss;
}

at::Tensor ParallelModule::predict(const at::Tensor& inputs) {
  return strategy_->predict(std::vector{make_micro_batch(inputs, {}).to(device_)}).front();
}

void ParallelModule::copy_to(torch::nn::Module& module) { tessera::copy_to(*strategy_, &module); }

bool ParallelModule::copy_to(torch::nn::Module& module, int rank) {
  const Communicator& world = mesh_.world();
  check(rank >= 0 && rank < world.size(), ErrorCode::kInvalidArgument, "copy_to: there is no rank ",
        rank, " among ", world.size(), " ranks");
  const bool mine = world.rank() == rank;
  tessera::copy_to(*strategy_, mine ? &module : nullptr);
  return mine;
}

}  // namespace tessera
