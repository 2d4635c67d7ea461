// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Dynamic loss scaling for fp16 (Micikevicius et al. 2018), decided and kept on the device.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

/// 2^63: the largest power of two whose square and the inverse of its square are normal fp32
/// numbers. The scale multiplies a mean over all targets of the global batch: one target's gradient
/// carries scale / targets, which suits fp16 up to about 2^15, so what is useful grows with the
/// batch (2^37 for 4M targets). Up to this bound the seed of backward (at most the scale), the
/// inverse scale in the update and the squared norm of scaled gradients (of a norm of 1 without the
/// scale) stay in fp32's range; what leaves it is an overflow like any other.
inline constexpr double kLargestLossScale = 0x1p63;

/// Options by torch.amp.GradScaler's names.
struct LossScalerConfig {
  bool enabled = false;                  ///< false: the scale stays 1
  double initial_scale = 65536;          ///< 2^16
  double growth_factor = 2;              ///< at least 1
  double backoff_factor = 0.5;           ///< at an overflow, in (0, 1]; 1: a constant scale
  int64_t growth_interval = 1000;        ///< finite steps in a row before the scale grows
  double min_scale = 1;                  ///< overflows lower the scale no further
  double max_scale = kLargestLossScale;  ///< growth stops here; at most kLargestLossScale
};

/// What a checkpoint keeps of a LossScaler.
struct LossScalerState {
  double scale = 1;                                         ///< the scale that multiplies the loss
  int64_t good_steps = 0;                                   ///< finite steps in a row
  bool operator==(const LossScalerState&) const = default;  ///< compares both members
};

/// One per training run. Per step: read scale() for backward and unscaling, then update(), in this
/// order: gradients of a step are always divided by the scale they were multiplied with.
class LossScaler {
 public:
  /// Keeps the scale on this device.
  LossScaler(const LossScalerConfig& config, at::Device device);
  const at::Tensor& scale() const { return scale_; }  ///< fp32 scalar, same address for ever
  /// found_inf: fp32 scalar, non-zero when the step's gradients were not finite.
  void update(const at::Tensor& found_inf);
  LossScalerState state() const;  ///< waits for the device
  /// A scale outside this scaler's bounds becomes the nearest bound.
  void restore(const LossScalerState& state);
  bool enabled() const { return config_.enabled; }  ///< false: scale() is 1 for ever
  /// Whether an overflow at this scale leaves nothing to lower. A constant scale (backoff 1) never
  /// falls, so its overflows say nothing.
  bool exhausted(double scale) const {
    return config_.enabled && config_.backoff_factor < 1 && scale <= config_.min_scale;
  }

 private:
  LossScalerConfig config_;
  at::Tensor scale_, good_steps_;
};

}  // namespace tessera
