// SPDX-License-Identifier: MIT
#include "lib/optim/flat_optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace tessera {

FlatOptimizer::FlatOptimizer(std::vector<std::string> state_names,
                             std::vector<OptimizerRange> ranges)
    : state_names_(std::move(state_names)), ranges_(std::move(ranges)) {
  for (const OptimizerRange& range : ranges_) {
    if (!step_count_.defined()) {
      step_count_ = at::zeros({}, range.parameter.options().dtype(at::kDouble));
    }
    std::vector<at::Tensor>& state = states_.emplace_back();
    for (size_t i = 0; i < state_names_.size(); ++i) {
      state.push_back(at::zeros_like(range.parameter));
    }
  }
  if (!step_count_.defined()) step_count_ = at::zeros({}, at::kDouble);
}

void FlatOptimizer::begin_step(const StepScalars& scalars) {
  at::NoGradGuard no_grad;
  scalars_ = scalars;
  if (!scalars_.skip.defined()) scalars_.skip = at::zeros_like(step_count_);
  step_count_.add_(scalars_.skip.eq(0));
}

void FlatOptimizer::update(size_t first, size_t count) {
  for (size_t i = first; i < first + count; ++i) update_range(ranges_[i], states_[i]);
}

void FlatOptimizer::update(std::span<const ExternalRange> ranges) const {
  for (const auto& [range, state] : ranges) update_range(range, state);
}

NamedTensors FlatOptimizer::state(size_t range) const {
  NamedTensors state;
  for (size_t i = 0; i < state_names_.size(); ++i) {
    state.emplace_back(state_names_[i], states_[range][i]);
  }
  return state;
}

int64_t FlatOptimizer::state_bytes() const {
  int64_t sum = 0;
  for (const auto& of_range : states_) {
    for (const at::Tensor& tensor : of_range) sum += static_cast<int64_t>(tensor.nbytes());
  }
  return sum;
}

at::Tensor FlatOptimizer::Update::decayed_gradient(double weight_decay) const {
  const double decay = range.decay(weight_decay);
  return decay == 0 ? gradient : gradient + range.parameter * decay;
}

void FlatOptimizer::update_range(const OptimizerRange& range,
                                 const std::vector<at::Tensor>& state) const {
  at::NoGradGuard no_grad;
  const at::Tensor keep = scalars_.skip.ne(0);
  Update update{range, range.gradient.to(at::kFloat), scalars_.learning_rate};
  if (scalars_.gradient_scale.defined()) {
    update.gradient = update.gradient * scalars_.gradient_scale;
  }
  if (range.rule.lr_factor != 1) {
    update.learning_rate = update.learning_rate * range.rule.lr_factor;
  }
  std::vector<at::Tensor> becomes = state;
  const at::Tensor parameter = updated(update, becomes);
  for (size_t i = 0; i < state_names_.size(); ++i) {
    state[i].copy_(at::where(keep, state[i], becomes[i]));
  }
  range.parameter.copy_(at::where(keep, range.parameter, parameter));
  if (range.low_precision.defined()) range.low_precision.copy_(range.parameter);
}

}  // namespace tessera
