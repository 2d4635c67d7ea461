// SPDX-License-Identifier: MIT
#pragma once
// Shared by operations on packed rows and attention to them.
#include <ATen/ATen.h>

#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/core/micro_batch.h"
#include "tessera/ops/kernels.h"

namespace tessera::ops {

// tokens: [batch, sequence, ...] of packed rows, or [sequences, sequence, ...] with padding at the
// end. Throws Error(kInvalidArgument).
inline void check_packed(const PackedRows& packed, const at::Tensor& tokens,
                         const at::Tensor& attention_mask) {
  if (!packed.defined()) return;
  check(!attention_mask.defined(), ErrorCode::kInvalidArgument,
        "attention: packed rows take no attention mask");
  const at::IntArrayRef given = tokens.sizes().slice(0, 2);
  check(packed.positions.sizes() == given || packed.first_keys.sizes() == given,
        ErrorCode::kInvalidArgument, "attention: rows packed into ", packed.positions.sizes(),
        " of [batch, sequence], but ", tokens.sizes().slice(0, 2), " were given");
}

// Removes the padding rows: x [sequences, sequence, n] as [batch, sequence, n] of the given tokens.
inline at::Tensor given_tokens(const at::Tensor& x, at::IntArrayRef tokens) {
  if (x.sizes().slice(0, 2) == tokens) return x;
  const int64_t n = x.size(2);
  // A single view, since each costs as much host time as a launch.
  if (x.is_contiguous()) return x.as_strided({tokens[0], tokens[1], n}, {tokens[1] * n, n, 1});
  return x.flatten(0, 1)
      .narrow(0, 0, tokens[0] * tokens[1])
      .view({tokens[0], tokens[1], x.size(2)});
}

// d of qkv [batch, sequence, (heads + 2 key_heads) d].
inline int64_t head_size(const at::Tensor& qkv, const SelfAttention& attention) {
  return qkv.size(2) / (attention.heads + 2 * attention.key_heads);
}

// The window in keys; 0 where every query sees all keys before it anyway.
inline int64_t window_inside(const SelfAttention& attention, int64_t sequence,
                             const PackedRows& packed) {
  const int64_t longest = packed.defined() ? packed.longest() : sequence;
  return attention.window < longest ? attention.window : 0;
}

// True where GPUs use LibTorch's flash kernel, if it fits: the only one with dropout, or with
// windows in packed rows.
inline bool attends_by_flash(const SelfAttention& attention, int64_t sequence,
                             const PackedRows& packed) {
  return attention.dropout.on() ||
         (packed.defined() && window_inside(attention, sequence, packed) > 0);
}

// Longest row for lib/ops/cuda/row_attention.cu by head size; 0 for unsupported heads. Longer rows
// are faster as whole sequences, or were not measured.
constexpr int64_t longest_row(int64_t d) { return d == 64 ? 1024 : d == 80 ? 512 : 0; }

// True where GPUs attend to rows one by one (no mask): supported heads in 16 bits and short rows.
// Equal rows without ALiBi are faster as whole sequences, since cuDNN then needs no score_mod.
inline bool attends_by_row(at::ScalarType type, const SelfAttention& attention, int64_t d,
                           int64_t sequence, const PackedRows& packed) {
  const int64_t longest = std::max<int64_t>(packed.defined() ? packed.longest() : sequence, 1);
  return (packed.defined() || attention.slopes.defined()) && !attention.dropout.on() &&
         (type == at::kBFloat16 || type == at::kHalf) && longest <= longest_row(d) &&
         window_inside(attention, sequence, packed) == 0;
}

// Every row as [1, tokens, ...], views of x [batch, sequence, ...].
inline std::vector<at::Tensor> each_row(const at::Tensor& x, const PackedRows& packed) {
  return x.flatten(0, 1).unsqueeze(0).split_with_sizes(packed.lengths, 1);
}

}  // namespace tessera::ops
