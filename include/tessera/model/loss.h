// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Result and reduction of a loss.
#include <ATen/core/Tensor.h>

namespace tessera {

/// Reduction of a loss, as in LibTorch: sum over the targets, mean, or one loss per element.
enum class LossReduction { kSum, kMean, kNone };

/// Result of a loss. The batch's loss is the sum of `loss` over micro-batches and ranks, divided
/// once by the sum of `divisor`. So a mean, with class weights too, is the mean over the whole
/// batch under every layout, not a mean of means.
struct LossResult {
  /// Scalar, reduced as ModuleOptions::reduction says; kNone: any shape. A mean is weighted by
  /// `divisor`.
  at::Tensor loss;
  /// Scalar without gradient; with class weights, their sum over the targets. Undefined:
  /// MicroBatch::target_count; for kNone without integral labels, the number of losses.
  at::Tensor divisor = {};
  /// 1-D, ModuleOptions::counters elements: summed over the batch, without gradient.
  at::Tensor counters = {};
};

}  // namespace tessera
