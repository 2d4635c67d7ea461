// SPDX-License-Identifier: MIT
#pragma once
// The product of experts, for which transformers has an operator of its own.
#include <ATen/core/Tensor.h>

namespace tessera::program {

// Rows [offsets[e - 1], offsets[e]) of x [rows, in] times weight[e] of [experts, in, out] -> [rows,
// out]; offsets int32 [experts]. Rows behind the last offset give 0.
at::Tensor grouped_product(const at::Tensor& x, const at::Tensor& weight,
                           const at::Tensor& offsets);

}  // namespace tessera::program
