// SPDX-License-Identifier: MIT
#pragma once
// ALiBi attention with padding on the left, as in transformers.
#include <ATen/core/Tensor.h>

#include "tessera/ops/kernels.h"

namespace tessera {

// ops::alibi_attention with a mask. A query that sees no key (padding on the left) attends to all
// keys of its row uniformly, gradient included, instead of returning 0: it may predict the first
// real token.
at::Tensor padded_alibi_attention(const at::Tensor& qkv, const ops::SelfAttention& attention,
                                  const at::Tensor& attention_mask);

// Context of such queries q [batch, queries, heads, d], from all keys and values [batch, keys,
// heads, d] of their rows; 0 for others. blind [batch, queries, 1]: 1 for them, in q's dtype. ->
// [batch, queries, heads * d]
at::Tensor blind_context(const ops::QueriesKeysValues& given, const at::Tensor& blind);

}  // namespace tessera
