// SPDX-License-Identifier: MIT
#include "lib/ops/counted_attention.h"

#include "lib/core/meta.h"
#include "lib/ops/counted.h"
#include "lib/ops/packed.h"
#include "lib/ops/reference.h"

namespace tessera::ops::counted {

at::Tensor flash_sums(int64_t batch, int64_t sequence, size_t packed_rows, int64_t heads,
                      int64_t head_size, const at::Tensor& like) {
  constexpr int64_t kTile = 128, kColumns = 32;
  const int64_t whole = (sequence + kTile - 1) / kTile * kTile;
  const int64_t rows = packed_rows > 0
                           ? batch * sequence + static_cast<int64_t>(packed_rows) * kTile
                           : batch * whole;
  const int64_t d = (head_size + kColumns - 1) / kColumns * kColumns;
  return empty_fp32({rows, heads, d + 1}, like);
}

std::vector<at::Tensor> cudnn_workspace(int64_t queries, int64_t keys, int64_t d, bool grouped,
                                        const at::Tensor& like) {
  std::vector<at::Tensor> work{empty_fp32({queries, d + 1}, like)};
  if (grouped) work.push_back(at::empty({2, keys, d}, like.options()));
  return work;
}

namespace {

bool attention_fits(const at::Tensor& qkv, const SelfAttention& attention, const at::Tensor& mask,
                    const PackedRows& packed) {
  const int64_t d = head_size(qkv, attention);
  if (!is_16_bit(qkv) || mask.defined() || d % 8 != 0) return false;
  if (attends_by_flash(attention, qkv.size(1), packed))
    return !attention.slopes.defined() && d <= 256;
  return d <= 128 && qkv.size(1) > 1;
}

}  // namespace

AttentionOutput attention_forward(const at::Tensor& qkv, const SelfAttention& attention,
                                  const at::Tensor& attention_mask, const PackedRows& packed) {
  if (!attention_fits(qkv, attention, attention_mask, packed)) {
    return reference::attention_forward(qkv, attention, attention_mask, packed);
  }
  const int64_t batch = qkv.size(0), sequence = qkv.size(1);
  return {at::empty({batch, sequence, attention.heads * head_size(qkv, attention)}, qkv.options()),
          empty_fp32({batch, attention.heads, sequence}, qkv),
          attends_by_flash(attention, sequence, packed)
              ? at::empty({2}, qkv.options().dtype(at::kLong))
              : at::Tensor()};
}

at::Tensor attention_backward(const at::Tensor& gradient, const at::Tensor& qkv,
                              const SelfAttention& attention, const at::Tensor& attention_mask,
                              const AttentionOutput& forward, const PackedRows& packed) {
  if (!attention_fits(qkv, attention, attention_mask, packed)) {
    return reference::attention_backward(gradient, qkv, attention, attention_mask, forward, packed);
  }
  if (attends_by_flash(attention, qkv.size(1), packed)) {
    const at::Tensor parts = at::empty_like(qkv);  // queries, keys and values as separate tensors
    {
      const at::Tensor sums = flash_sums(qkv.size(0), qkv.size(1), packed.lengths.size(),
                                         attention.heads, head_size(qkv, attention), qkv);
      // With shared key heads, each query head has its own key and value gradients before their
      // sum.
      const bool apart = attention.key_heads < attention.heads;
      const at::Tensor of_keys = apart ? at::empty_like(forward.output) : at::Tensor(),
                       of_values = apart ? at::empty_like(forward.output) : at::Tensor();
    }
    return at::empty_like(qkv);
  }
  const at::Tensor dqkv = at::empty_like(qkv);
  if (attends_by_row(qkv.scalar_type(), attention, head_size(qkv, attention), qkv.size(1),
                     packed)) {
    return dqkv;
  }
  const int64_t rows = qkv.size(0) * qkv.size(1) * attention.heads;
  const auto work = cudnn_workspace(rows, rows, head_size(qkv, attention),
                                    attention.key_heads < attention.heads, qkv);
  return dqkv;
}

at::Tensor attention_to_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const CachedRows& rows, const SelfAttention& attention) {
  constexpr int64_t kMostHead = 256;
  if (!is_16_bit(rows.keys) || q.size(3) % 8 != 0 || q.size(3) > kMostHead) {
    return reference::attention_to_cache(q, k, v, rows, attention);
  }
  return at::empty({q.size(0), 1, q.size(2) * q.size(3)}, q.options());
}

bool attends_to_sequences(const at::Tensor& x, const SelfAttention& attention, int64_t d,
                          const at::Tensor& attention_mask, const PackedRows& packed) {
  return is_16_bit(x) && !attention_mask.defined() && d % 8 == 0 && d <= 128 &&
         packed.sequence > 1 && !attends_by_flash(attention, packed.sequence, packed) &&
         !attends_by_row(x.scalar_type(), attention, d, packed.sequence, packed);
}

}  // namespace tessera::ops::counted
