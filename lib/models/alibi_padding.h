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

}  // namespace tessera
