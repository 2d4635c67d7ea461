// SPDX-License-Identifier: MIT
#pragma once
// Rows of experts, as ExpertOrder has them, between tokens and grouped products. Rows behind the
// last expert's end have no values: on a GPU they are neither read nor written. `foreign` marks
// their slots, bool [tokens, experts_per_token]; undefined: every row has values.
#include <ATen/core/Tensor.h>

#include "lib/ops/routing.h"

namespace tessera::ops {

// x [tokens, n] -> [rows, n], each row its token.
at::Tensor dispatch_rows(const at::Tensor& x, const ExpertOrder& order);
// Sum of each token's rows, in the order of its experts: rows [rows, n] -> [tokens, n].
at::Tensor combine_rows(const at::Tensor& rows, const ExpertOrder& order,
                        const at::Tensor& foreign);

// SwiGLU of every row times the row's weight. gate_up [rows, 2 n]; weights, like
// Routing::weights, [tokens, experts_per_token] -> [rows, n].
at::Tensor weighted_swiglu(const at::Tensor& gate_up, const at::Tensor& weights,
                           const ExpertOrder& order);
struct WeightedSwigluBackward {
  at::Tensor output;   // weighted_swiglu() again; may take the gradient's memory
  at::Tensor gate_up;  // gradients of the arguments
  at::Tensor weights;  // 0 in foreign slots
};
// gradient [rows, n] is overwritten.
WeightedSwigluBackward weighted_swiglu_backward_(const at::Tensor& gradient,
                                                 const at::Tensor& gate_up,
                                                 const at::Tensor& weights,
                                                 const ExpertOrder& order,
                                                 const at::Tensor& foreign);

}  // namespace tessera::ops
