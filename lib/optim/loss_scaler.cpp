// SPDX-License-Identifier: MIT
#include "tessera/optim/loss_scaler.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera {

LossScaler::LossScaler(const LossScalerConfig& config, at::Device device) : config_(config) {
  check(config.initial_scale > 0 && config.growth_factor >= 1 && config.backoff_factor > 0 &&
            config.backoff_factor <= 1 && config.growth_interval > 0 && config.min_scale > 0,
        ErrorCode::kInvalidArgument,
        "loss scaling: scales and factors must be positive, growth >= 1 "
        "and backoff <= 1");
  check(config.min_scale <= config.initial_scale && config.initial_scale <= config.max_scale &&
            config.max_scale <= kLargestLossScale,
        ErrorCode::kInvalidArgument, "loss scaling: the first scale is ", config.initial_scale,
        ", the bounds are ", config.min_scale, " and ", config.max_scale,
        "; it must lie between them, and none may exceed 2^63, beyond which squared norms leave "
        "fp32's range");
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  scale_ = at::full({}, config.enabled ? config.initial_scale : 1.0, options);
  good_steps_ = at::zeros({}, options);
}

void LossScaler::update(const at::Tensor& found_inf) {
  if (!config_.enabled) return;
  at::NoGradGuard no_grad;
  const at::Tensor overflow = found_inf.ne(0);
  good_steps_.add_(1).masked_fill_(overflow, 0);
  const at::Tensor grow = good_steps_.ge(static_cast<double>(config_.growth_interval));
  const at::Tensor smaller = (scale_ * config_.backoff_factor).clamp_min(config_.min_scale);
  const at::Tensor larger = (scale_ * config_.growth_factor).clamp_max(config_.max_scale);
  scale_.copy_(at::where(overflow, smaller, at::where(grow, larger, scale_)));
  good_steps_.masked_fill_(grow, 0);
}

LossScalerState LossScaler::state() const {
  return {scale_.item<double>(), static_cast<int64_t>(good_steps_.item<double>())};
}

void LossScaler::restore(const LossScalerState& state) {
  check(state.scale > 0 && state.scale <= kLargestLossScale, ErrorCode::kInvalidArgument,
        "loss scaling: a scale of ", state.scale,
        " cannot be restored; scales are above 0 and at most 2^63");
  scale_.fill_(std::clamp(state.scale, config_.min_scale, config_.max_scale));
  good_steps_.fill_(static_cast<double>(state.good_steps));
}

}  // namespace tessera
