// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Weights of a causal model's targets.
#include <ATen/core/Tensor.h>

#include "tessera/core/micro_batch.h"

namespace tessera {

/// Name in MicroBatch::extra of the targets' weights: fp32 [batch, sequence], finite, aligned with
/// the shifted labels. A causal loss is then the sum of weight * cross-entropy over the targets;
/// its divisor stays MicroBatch::target_count. Losses by token, such as those of preferences and
/// policies, are trained through it: a target's weight is minus the loss's derivative by the
/// target's log-probability, times the divisor.
inline constexpr const char* kTargetWeights = "target_weights";

/// The micro-batch's weights of the targets for which the head runs: [n] with head_positions, else
/// [batch * sequence]; undefined where it has none. Throws Error(kInvalidArgument) for another
/// dtype or shape than the labels'.
at::Tensor target_weights(const MicroBatch& micro_batch);

/// Log-probability of each target: fp32 [n] from scores [..., n, vocabulary] of a causal head for
/// labels of n elements; 0 for kIgnoredLabel. No gradient.
at::Tensor log_probabilities_of(const at::Tensor& scores, const at::Tensor& labels);

}  // namespace tessera
