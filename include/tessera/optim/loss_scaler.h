// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Dynamic loss scaling for fp16 (Micikevicius et al. 2018), computed on the device.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

/// 2^63: the largest power of two whose square, and its inverse, are normal fp32 numbers. The scale
/// multiplies a mean over the global batch's targets, so one target's gradient carries scale /
/// targets. fp16 can use about 2^15 of that, so useful scales grow with the batch (2^37 for 4M
/// targets). Up to this bound backward's seed (at most the scale), the update's inverse scale and
/// the squared norm of scaled gradients (for an unscaled norm of 1) stay in fp32's range. Larger
/// values are ordinary overflows.
inline constexpr double kLargestLossScale = 0x1p63;

/// Options with torch.amp.GradScaler's names.
struct LossScalerConfig {
  bool enabled = false;            ///< false: the scale stays 1
  double initial_scale = 65536;    ///< 2^16
  double growth_factor = 2;        ///< at least 1
  double backoff_factor = 0.5;     ///< factor after an overflow, in (0, 1]; 1: a constant scale
  int64_t growth_interval = 1000;  ///< finite steps in a row before the scale grows
  double min_scale = 1;            ///< lower bound after overflows
  double max_scale = kLargestLossScale;  ///< upper bound of growth; at most kLargestLossScale
};

/// State of a LossScaler in a checkpoint.
struct LossScalerState {
  double scale = 1;                                         ///< the scale that multiplies the loss
  int64_t good_steps = 0;                                   ///< consecutive finite steps
  bool operator==(const LossScalerState&) const = default;  ///< compares both members
};

/// Loss scaler of a training run. Per step use scale() for backward and unscaling, then call
/// update(), so that gradients are divided by the scale that multiplied them.
class LossScaler {
 public:
  /// Creates the scale on this device.
  LossScaler(const LossScalerConfig& config, at::Device device);
  const at::Tensor& scale() const { return scale_; }  ///< fp32 scalar with a constant address
  /// found_inf: fp32 scalar, non-zero when the step's gradients were not finite.
  void update(const at::Tensor& found_inf);
  LossScalerState state() const;  ///< waits for the device
  /// Continues from a state; clamps the scale to this scaler's bounds.
  void restore(const LossScalerState& state);
  bool enabled() const { return config_.enabled; }  ///< false: scale() is always 1
  /// Whether an overflow at this scale cannot lower it further; false for a constant scale (backoff
  /// 1).
  bool exhausted(double scale) const {
    return config_.enabled && config_.backoff_factor < 1 && scale <= config_.min_scale;
  }

 private:
  LossScalerConfig config_;
  at::Tensor scale_, good_steps_;
};

}  // namespace tessera
