// SPDX-License-Identifier: MIT
#pragma once
// Attention of pieces of rows to the keys before them.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/ops/row_spans.h"

namespace tessera {
class KeptTensors;
}

namespace tessera::ops {

struct PieceAttention {
  double scale = 1.0;              // multiplies the scores
  int64_t window = 0;              // most keys that a query sees, up to its own; 0: all
  at::Tensor slopes = {};          // ALiBi: fp32 [heads]; undefined: none
  PackedRows packed = {};          // rows inside the sequences; undefined: each is one row
  at::Tensor attention_mask = {};  // bool [batch, keys]: false keys are never seen; undefined
  int64_t most_scores = int64_t{1} << 27;  // formed at once, where no kernel avoids them
  bool in_two_parts = false;               // also on CPUs, as GPUs do: for tests
  // [heads]: one more score of each query, of a value 0 (gpt-oss); undefined: none. May be trained.
  at::Tensor sinks = {};
  // Of a recomputed block: forward keeps the kernels' results, and its repetition (is_again) takes
  // them. Null, and where scores are formed: each forms its own.
  std::shared_ptr<KeptTensors> kept = nullptr;
  bool is_again = false;
};

// Whether piece_attention() takes kernels that form no scores, for q [..., heads, d].
bool piece_kernels_take(const at::Tensor& q, const PieceAttention& attention);

// softmax(scale q k^T + ALiBi, and sinks) v of the pieces' queries, one piece after the other,
// [batch, queries, heads, d], over whole rows' keys and values [batch, keys, 2 key_heads, d], keys
// first. A query sees keys up to its own column; without any visible key it gives 0. GPUs take
// LibTorch's flash kernels in 16 bits without ALiBi and mask; else scores are formed in chunks of
// queries, which backward repeats.
// -> [batch, queries, heads * d]
at::Tensor piece_attention(const at::Tensor& q, const at::Tensor& keys_values,
                           const std::vector<RowPiece>& pieces, const PieceAttention& attention);

}  // namespace tessera::ops
