// SPDX-License-Identifier: MIT
#pragma once
// Sums over tokens that a router's losses and its counts are made of.
#include <ATen/core/Tensor.h>

#include "lib/ops/routing.h"

namespace tessera::ops {

// Columns of router_sums(): the probabilities of every expert, the squared log-sum-exp of the
// logits, and the number of tokens of every expert.
constexpr int64_t router_sum_count(int64_t experts) { return 2 * experts + 1; }

// [2 experts + 1], in the probabilities' dtype. log_sum_exp [tokens], of the logits. counted
// [tokens], 1 for tokens that count and 0 for padding; undefined: all count.
at::Tensor router_sums(const Routing& routing, const at::Tensor& log_sum_exp,
                       const at::Tensor& counted);
// Gradient of the logits for one of router_sums(); counts have none.
at::Tensor router_sums_backward(const at::Tensor& gradient, const Routing& routing,
                                const at::Tensor& log_sum_exp, const at::Tensor& counted);

}  // namespace tessera::ops
