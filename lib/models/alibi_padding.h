// SPDX-License-Identifier: MIT
#pragma once
// ALiBi with padding on the left, as transformers computes it.
#include <ATen/core/Tensor.h>

#include "tessera/ops/kernels.h"

namespace tessera {

// ops::alibi_attention with a mask, but a query that sees no key (padding on the left) attends to
// all keys of its row alike, gradient included, where that gives 0. The first real token may be the
// target of such a query.
at::Tensor padded_alibi_attention(const at::Tensor& qkv, const ops::SelfAttention& attention,
                                  const at::Tensor& attention_mask);

}  // namespace tessera
