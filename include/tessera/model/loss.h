// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// What a loss returns, and how it was reduced.
#include <ATen/core/Tensor.h>

namespace tessera {

/// As LibTorch's losses are told: the sum over the targets, their mean, or the losses one by one.
enum class LossReduction { kSum, kMean, kNone };

/// The loss of the whole batch is the sum of `loss` over micro-batches and ranks, divided once by
/// the sum of `divisor`. So a mean, also one of class weights, is the mean over the whole batch
/// under every layout, and not a mean of means.
struct LossResult {
  /// A scalar of this reduction (ModuleOptions::reduction); kNone: any shape. A mean over the
  /// micro-batch counts `divisor` times.
  at::Tensor loss;
  /// A scalar without gradient: of class weights their sum over the targets. Undefined:
  /// MicroBatch::target_count; of kNone without integral labels the number of losses.
  at::Tensor divisor = {};
  /// 1-D, as many as ModuleOptions::counters says: summed over the batch, without gradient.
  at::Tensor counters = {};
};

}  // namespace tessera
