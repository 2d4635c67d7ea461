// SPDX-License-Identifier: MIT
#include "tessera/train/weight_average.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <exception>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/split_master.h"

namespace tessera {

WeightAverage::WeightAverage(Strategy& strategy, double decay)
    : strategy_(strategy), decay_(decay) {
  check(decay >= 0 && decay < 1, ErrorCode::kInvalidArgument, "WeightAverage: the decay is ", decay,
        "; it must be at least 0 and below 1, such as 0.999");
  const at::NoGradGuard no_grad;
  for (const StateTensor& weight : weights()) {
    averages_.push_back(weight.get().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true));
  }
}

std::vector<StateTensor> WeightAverage::weights() const {
  std::vector<StateTensor> all = strategy_.state();
  std::erase_if(all,
                [](const StateTensor& piece) { return piece.kind != "parameter" || piece.frozen; });
  return all;
}

void WeightAverage::update(const at::Tensor& skip) {
  const at::NoGradGuard no_grad;
  const std::vector<StateTensor> now = weights();
  if (now.empty()) return;
  if (!skip.defined()) {
    // Whole values together; joined values of split masters exist one piece at a time.
    std::vector<at::Tensor> averages, values;
    for (size_t i = 0; i < now.size(); ++i) {
      if (now[i].split.defined()) {
        averages_[i].lerp_(now[i].get(), 1 - decay_);
        continue;
      }
      averages.push_back(averages_[i]);
      values.push_back(now[i].value);
    }
    if (!values.empty()) at::_foreach_lerp_(averages, values, 1 - decay_);
    return;
  }
  const at::Tensor weight =
      at::where(skip.ne(0), at::zeros_like(skip), at::full_like(skip, 1 - decay_)).to(at::kFloat);
  for (size_t i = 0; i < now.size(); ++i) {
    averages_[i].lerp_(now[i].get(), weight.to(averages_[i].device()).reshape({}));
  }
}

void WeightAverage::swap() {
  const at::NoGradGuard no_grad;
  const std::vector<StateTensor> now = weights();
  const std::vector<Unsettled> before = std::exchange(unsettled_, {});
  for (size_t i = 0; i < now.size(); ++i) {
    const at::Tensor kept = now[i].get().clone();
    if (before.empty()) {
      const at::Tensor places = settle_moves(averages_[i]).nonzero().flatten();
      unsettled_.push_back({places, averages_[i].index_select(0, places)});
    }
    now[i].set(averages_[i]);
    averages_[i].copy_(kept);
    if (!before.empty()) averages_[i].index_copy_(0, before[i].places, before[i].values);
  }
  strategy_.state_restored();
}

WeightAverage::Swapped::Swapped(WeightAverage& average)
    : average_(average), exceptions_(std::uncaught_exceptions()) {
  average_.swap();
}

WeightAverage::Swapped::~Swapped() noexcept(false) {
  if (std::uncaught_exceptions() == exceptions_) {
    average_.swap();
    return;
  }
  try {
    average_.swap();
  } catch (...) {  // the current exception has the reason
  }
}

std::vector<StateTensor> WeightAverage::state() {
  std::vector<StateTensor> state = weights();
  for (size_t i = 0; i < state.size(); ++i) {
    state[i].kind = "average";
    state[i].value = averages_[i];
    state[i].split = {};
  }
  return state;
}

int64_t WeightAverage::bytes() const {
  int64_t sum = 0;
  for (const at::Tensor& average : averages_) sum += static_cast<int64_t>(average.nbytes());
  return sum;
}

}  // namespace tessera
