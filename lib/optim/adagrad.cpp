// SPDX-License-Identifier: MIT
#include "tessera/optim/adagrad.h"

#include <ATen/ATen.h>

#include "lib/optim/description.h"
#include "lib/optim/flat_optimizer.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

class Adagrad final : public FlatOptimizer {
 public:
  Adagrad(const AdagradConfig& config, std::vector<OptimizerRange> ranges)
      : FlatOptimizer({"sum"}, std::move(ranges)), config_(config) {}
  std::string describe() const override {
    return described("Adagrad", {{"lr_decay", config_.lr_decay},
                                 {"epsilon", config_.epsilon},
                                 {"weight_decay", config_.weight_decay}});
  }

 protected:
  at::Tensor updated(const Update& update, std::vector<at::Tensor>& state) const override {
    const at::Tensor gradient = update.decayed_gradient(config_.weight_decay);
    state[0] = state[0] + gradient * gradient;
    const at::Tensor rate = update.learning_rate / (1 + (step_count() - 1) * config_.lr_decay);
    return update.range.parameter - gradient / (state[0].sqrt() + config_.epsilon) * rate;
  }

 private:
  const AdagradConfig config_;
};

}  // namespace

OptimizerFactory make_adagrad(const AdagradConfig& config) {
  check(config.lr_decay >= 0 && config.epsilon > 0, ErrorCode::kInvalidArgument,
        "Adagrad: a rate's decay of ", config.lr_decay, " must not be negative, and an epsilon of ",
        config.epsilon, " must be positive");
  check(config.weight_decay >= 0, ErrorCode::kInvalidArgument, "Adagrad: weight decay ",
        config.weight_decay, " must not be negative");
  return [config](std::vector<OptimizerRange> ranges) -> std::unique_ptr<Optimizer> {
    refuse_betas(ranges, "Adagrad");
    return std::make_unique<Adagrad>(config, std::move(ranges));
  };
}

}  // namespace tessera
