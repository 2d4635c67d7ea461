// SPDX-License-Identifier: MIT
#pragma once
// Attention that materialises its scores.
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/ops/attention.h"

namespace tessera::ops {

// Consecutive queries and the range of keys they can reach.
struct Piece {
  int64_t first_query, queries, first_key, keys;
};

// Whether no fused kernel takes these options.
inline bool forms_scores(const CausalAttentionOptions& options) {
  return options.softcap > 0 || options.sinks.defined() || options.slopes.defined();
}

// q [batch, heads, queries, d]; k, v [batch, heads, keys, d] of a sequence of length n; seen (bool)
// broadcasts to the scores. options: all but the window. -> [batch, heads, queries, d].
at::Tensor attend_by_scores(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& seen, const Piece& piece, int64_t n,
                            const CausalAttentionOptions& options);

}  // namespace tessera::ops
