// SPDX-License-Identifier: MIT
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/ops/kernels.h"

namespace tessera {

// Prefill attention inside packed rows, for inference; only the first `rows` rows matter, others
// get arbitrary finite values. qkv [1, tokens, ...] -> [1, tokens, heads * d].
at::Tensor attend_packed_prefill(const at::Tensor& qkv, const ops::SelfAttention& attention,
                                 const PackedRows& packed, int64_t rows);

namespace detail {
// The same with rows padded to one length, where no kernel takes packed rows.
at::Tensor attend_padded_prefill(const at::Tensor& qkv, const ops::SelfAttention& attention,
                                 const PackedRows& packed, int64_t rows);
}  // namespace detail

}  // namespace tessera
