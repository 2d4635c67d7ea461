// SPDX-License-Identifier: MIT
#pragma once
// Activation function of the fused block, with its backward.
#include <ATen/core/Tensor.h>

#include "lib/models/decoder_block.h"
#include "tessera/ops/kernels.h"

namespace tessera::detail {

// inner: gate and up side by side in a gated block.
// largest, here and below: receives the result's largest magnitude where a kernel has it; null: not
// wanted.
at::Tensor activation_forward(const at::Tensor& inner, const DecoderBlockOptions& options,
                              at::Tensor* largest = nullptr);
// Returns inner's gradient, possibly in dactive, which is overwritten. active: recomputed unless
// saved; null: not needed.
at::Tensor activation_backward(const at::Tensor& dactive, const at::Tensor& inner,
                               at::Tensor* active, const DecoderBlockOptions& options,
                               const ProductWeights& w, const ProductWeights& g,
                               ops::ColumnSums& sums, at::Tensor* largest = nullptr);

}  // namespace tessera::detail
