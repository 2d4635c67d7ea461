// SPDX-License-Identifier: MIT
#include "tessera/optim/lion.h"

#include <ATen/ATen.h>

#include "lib/optim/description.h"
#include "lib/optim/flat_optimizer.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

class Lion final : public FlatOptimizer {
 public:
  Lion(const LionConfig& config, std::vector<OptimizerRange> ranges)
      : FlatOptimizer({"exp_avg"}, std::move(ranges)), config_(config) {}
  std::string describe() const override {
    return described("Lion", {{"beta1", config_.beta1},
                              {"beta2", config_.beta2},
                              {"weight_decay", config_.weight_decay}});
  }

 protected:
  at::Tensor updated(const Update& update, std::vector<at::Tensor>& state) const override {
    const auto& [range, gradient, learning_rate] = update;
    const auto [beta1, beta2] = range.rule.betas.value_or(std::pair(config_.beta1, config_.beta2));
    const at::Tensor direction = (state[0] * beta1 + gradient * (1 - beta1)).sign();
    state[0] = state[0] * beta2 + gradient * (1 - beta2);
    const at::Tensor kept = 1 - learning_rate * range.decay(config_.weight_decay);
    return range.parameter * kept - direction * learning_rate;
  }

 private:
  const LionConfig config_;
};

}  // namespace

OptimizerFactory make_lion(const LionConfig& config) {
  check(config.beta1 >= 0 && config.beta1 < 1 && config.beta2 >= 0 && config.beta2 < 1,
        ErrorCode::kInvalidArgument, "Lion: betas ", config.beta1, ", ", config.beta2,
        " must lie in [0, 1)");
  check(config.weight_decay >= 0, ErrorCode::kInvalidArgument, "Lion: weight decay ",
        config.weight_decay, " must not be negative");
  return [config](std::vector<OptimizerRange> ranges) -> std::unique_ptr<Optimizer> {
    return std::make_unique<Lion>(config, std::move(ranges));
  };
}

}  // namespace tessera
