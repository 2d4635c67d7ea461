// SPDX-License-Identifier: MIT
#include "tessera/optim/muon.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "lib/optim/description.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int kMostSteps = 99;  // torch's limit

class Muon final : public MatrixOptimizer {
 public:
  explicit Muon(const MuonConfig& config) : config_(config) {}

  std::string name() const override { return "Muon"; }
  std::string describe() const override {
    const auto& [a, b, c] = config_.ns_coefficients;
    return described("Muon", {{"weight_decay", config_.weight_decay},
                              {"momentum", config_.momentum},
                              {"nesterov", config_.nesterov ? 1 : 0},
                              {"a", a},
                              {"b", b},
                              {"c", c},
                              {"epsilon", config_.epsilon},
                              {"ns_steps", config_.ns_steps},
                              {"adjust_lr", static_cast<double>(config_.adjust_lr)},
                              {"relative_rate", config_.relative_rate}});
  }
  NamedShapes state_shapes(c10::IntArrayRef shape) const override {
    return {{"momentum_buffer", shape.vec()}};
  }
  at::Tensor update(const MatrixStep& step, NamedTensors& state) const override {
    const at::Tensor& momentum = state.front().second;
    momentum.lerp_(step.gradient, 1 - config_.momentum);
    if (!config_.nesterov) return newton_schulz(momentum, config_);
    return newton_schulz(step.gradient.lerp(momentum, config_.momentum), config_);
  }
  double relative_rate() const override { return config_.relative_rate; }
  double lr_factor(c10::IntArrayRef shape) const override {
    const auto rows = static_cast<double>(shape[0]), columns = static_cast<double>(shape[1]);
    if (config_.adjust_lr == MuonLrAdjustment::kMatchRmsAdamW) {
      return 0.2 * std::sqrt(std::max(rows, columns));
    }
    return std::sqrt(std::max(1.0, rows / columns));
  }
  double weight_decay() const override { return config_.weight_decay; }
  at::ScalarType update_dtype() const override { return at::kBFloat16; }
  // Multiplications in the iteration's three products.
  double cost(c10::IntArrayRef shape) const override {
    const auto few = static_cast<double>(std::min(shape[0], shape[1]));
    const auto many = static_cast<double>(std::max(shape[0], shape[1]));
    return few * few * (2 * many + few) * (config_.ns_steps + 1);
  }

 private:
  const MuonConfig config_;
};

}  // namespace

at::Tensor newton_schulz(const at::Tensor& x, const MuonConfig& config) {
  const at::NoGradGuard no_grad;
  const auto [a, b, c] = config.ns_coefficients;
  const bool upright = x.size(0) > x.size(1);
  // Copies even a bf16 tensor.
  at::Tensor y = x.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
  if (upright) y = y.t();
  y.div_(y.norm().clamp_min(config.epsilon));
  for (int step = 0; step < config.ns_steps; ++step) {
    const at::Tensor gram = at::mm(y, y.t());
    const at::Tensor polynomial = at::addmm(gram, gram, gram, /*beta=*/b, /*alpha=*/c);
    y = at::addmm(y, polynomial, y, /*beta=*/a);
  }
  return upright ? y.t() : y;
}

std::shared_ptr<const MatrixOptimizer> muon(const MuonConfig& config) {
  check(config.momentum >= 0 && config.weight_decay >= 0, ErrorCode::kInvalidArgument,
        "Muon: momentum ", config.momentum, " and weight decay ", config.weight_decay,
        " must not be negative");
  check(config.ns_steps >= 0 && config.ns_steps <= kMostSteps, ErrorCode::kInvalidArgument,
        "Muon: ns_steps ", config.ns_steps, " must lie in [0, ", kMostSteps, "]");
  check(config.relative_rate > 0, ErrorCode::kInvalidArgument, "Muon: relative_rate ",
        config.relative_rate, " must be positive");
  check(config.epsilon > 0, ErrorCode::kInvalidArgument, "Muon: epsilon ", config.epsilon,
        " must be positive");
  return std::make_shared<const Muon>(config);
}

OptimizerFactory make_muon(const MuonConfig& config, OptimizerFactory others,
                           MatrixPredicate chooses) {
  return with_matrices(muon(config), std::move(chooses), std::move(others));
}

}  // namespace tessera
