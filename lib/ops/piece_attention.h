// SPDX-License-Identifier: MIT
#pragma once
// Attention of a piece of rows to the keys before it.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::ops {

// What the queries of a piece see. Columns are those of whole rows.
struct PieceOfRows {
  int64_t first_query = 0;    // column of the piece's first query
  double scale = 1.0;         // multiplies the scores
  int64_t window = 0;         // most keys that a query sees, up to its own; 0: all
  at::Tensor slopes;          // ALiBi: fp32 [heads]; undefined: none
  at::Tensor first_keys;      // int [batch, queries]: the first column a query sees; undefined: 0
  at::Tensor attention_mask;  // bool [batch, keys]: false keys are never seen; undefined: none
};

// softmax(scale q k^T + ALiBi) v of consecutive queries [batch, queries, heads, d] over keys from
// column 0 on, k and v [batch, keys, key_heads, d]. A query sees keys up to its own column; without
// any visible key it gives 0. Forms a mask [queries, keys], per row or head where these differ.
// -> [batch, queries, heads * d]
at::Tensor piece_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const PieceOfRows& piece);

}  // namespace tessera::ops
