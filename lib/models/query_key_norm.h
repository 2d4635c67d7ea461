// SPDX-License-Identifier: MIT
#pragma once
// RMS norms of queries and keys before the rotary embedding: of every head (Qwen3), or of all heads
// together (OLMoE), which the size of the weights tells. Ranks of a tensor axis have the weights
// whole, and add up the squares of all heads.
#include <ATen/core/Tensor.h>

#include <utility>

#include "lib/models/decoder_block.h"
#include "tessera/ops/kernels.h"

namespace tessera::detail {

// Of heads: the first has all, the second is undefined. Of all heads together: queries, then keys;
// x [rows, columns], rstd [rows].
using QueryKeyNormInput = std::pair<ops::HeadNormInput, ops::HeadNormInput>;

// In place; qkv [batch, sequence, (heads + 2 key_heads) d] holds all queries, then all keys first.
// Needs w.query_norm.
QueryKeyNormInput query_key_norm_(const at::Tensor& qkv, const DecoderBlockWeights& w,
                                  const DecoderBlockOptions& options);
// Replaces qkv's gradient in place; adds weight gradients to g through sums.
void query_key_norm_backward_(const at::Tensor& gradient, const DecoderBlockWeights& w,
                              const DecoderBlockWeights& g, const DecoderBlockOptions& options,
                              const QueryKeyNormInput& input, ops::ColumnSums& sums);

// For autograd: x [batch, sequence, heads, d] -> like x.
at::Tensor query_or_key_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                             const TensorAxis& axis = {});

}  // namespace tessera::detail
