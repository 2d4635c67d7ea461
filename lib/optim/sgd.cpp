// SPDX-License-Identifier: MIT
#include "tessera/optim/sgd.h"

#include <ATen/ATen.h>

#include "lib/optim/description.h"
#include "lib/optim/flat_optimizer.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

class Sgd final : public FlatOptimizer {
 public:
  Sgd(const SgdConfig& config, std::vector<OptimizerRange> ranges)
      : FlatOptimizer(config.momentum == 0 ? std::vector<std::string>{}
                                           : std::vector<std::string>{"momentum"},
                      std::move(ranges)),
        config_(config) {}
  std::string describe() const override {
    return described("SGD", {{"momentum", config_.momentum},
                             {"nesterov", config_.nesterov ? 1 : 0},
                             {"weight_decay", config_.weight_decay}});
  }

 protected:
  at::Tensor updated(const Update& update, std::vector<at::Tensor>& state) const override {
    at::Tensor direction = update.decayed_gradient(config_.weight_decay);
    if (!state.empty()) {
      // torch.optim.SGD starts the buffer with the first gradient; from zeros the recurrence gives
      // the same.
      state[0] = state[0] * config_.momentum + direction;
      direction = config_.nesterov ? direction + state[0] * config_.momentum : state[0];
    }
    return update.range.parameter - direction * update.learning_rate;
  }

 private:
  const SgdConfig config_;
};

}  // namespace

OptimizerFactory make_sgd(const SgdConfig& config) {
  check(config.momentum >= 0 && config.momentum < 1, ErrorCode::kInvalidArgument, "SGD: momentum ",
        config.momentum, " must lie in [0, 1)");
  check(config.weight_decay >= 0, ErrorCode::kInvalidArgument, "SGD: weight decay ",
        config.weight_decay, " must not be negative");
  check(!config.nesterov || config.momentum > 0, ErrorCode::kInvalidArgument,
        "SGD: nesterov needs a momentum");
  return [config](std::vector<OptimizerRange> ranges) -> std::unique_ptr<Optimizer> {
    refuse_betas(ranges, "SGD");
    return std::make_unique<Sgd>(config, std::move(ranges));
  };
}

}  // namespace tessera
