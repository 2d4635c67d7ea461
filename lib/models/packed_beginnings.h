// SPDX-License-Identifier: MIT
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/ops/kernels.h"

namespace tessera {

// Attention inside rows that lie end to end, whose first `rows` have what is wanted; for inference.
// Rows behind them may get anything finite. qkv [1, tokens, ...] -> [1, tokens, heads * d]
at::Tensor attend_to_packed_beginnings(const at::Tensor& qkv, const ops::SelfAttention& attention,
                                       const PackedRows& packed, int64_t rows);

namespace detail {
// The same by rows filled up to one length, where no kernel takes them end to end.
at::Tensor attend_to_filled_up(const at::Tensor& qkv, const ops::SelfAttention& attention,
                               const PackedRows& packed, int64_t rows);
}  // namespace detail

}  // namespace tessera
