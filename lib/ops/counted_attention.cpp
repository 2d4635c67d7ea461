// SPDX-License-Identifier: MIT
#include "lib/ops/counted_attention.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "lib/core/meta.h"
#include "lib/ops/autograd.h"
#include "lib/ops/counted.h"
#include "lib/ops/packed.h"
#include "lib/ops/reference.h"

namespace tessera::ops {
namespace {

using counted::empty_fp32;

// [batch, heads, sequence, d], laid out as [batch, sequence, heads, d].
at::Tensor empty_by_token(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

// Accumulator of the queries' gradient in LibTorch's CUDA flash backward: whole tiles of each
// sequence, or one more tile for each packed row.
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

// Workspace of cuDNN's backward for `rows` rows of all heads: the queries' gradient in fp32 and one
// number per row. With shared key heads, also the key and value gradients of each query head.
variable_list cudnn_workspace(int64_t rows, int64_t d, bool grouped, const at::Tensor& like) {
  variable_list work{empty_fp32({rows, d + 1}, like)};
  if (grouped) work.push_back(at::empty({2, rows, d}, like.options()));
  return work;
}

// LibTorch's kernels. CPU: tiles of scores for every thread. GPU: cuDNN in 16 bits; in fp32 a
// kernel that accumulates the queries' gradient. A mask becomes an additive bias.
class CountedAttention : public Function<CountedAttention> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const std::optional<at::Tensor>& mask) {
    const at::Tensor added = mask ? at::empty(mask->sizes(), q.options()) : at::Tensor();
    const at::Tensor output = empty_by_token(q);
    const at::Tensor log_sum_exp = empty_fp32({q.size(0), q.size(1), q.size(2)}, q);
    const auto tiles = tiles_of(q, k, /*scores=*/1, /*columns=*/q.size(3) + 2);
    context->save_for_backward({q, k, v, output, log_sum_exp, added});
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const at::Tensor dq = empty_by_token(q), dk = empty_by_token(k), dv = empty_by_token(v);
    const int64_t rows = q.size(0) * q.size(1) * q.size(2), d = q.size(3);
    const variable_list work =
        !runs_on_gpu(q) ? tiles_of(q, k, /*scores=*/2, /*columns=*/1)
        : q.element_size() == 2
            ? cudnn_workspace(rows, d, q.size(1) > k.size(1), q)
            : variable_list{flash_sums(q.size(0), q.size(2), 0, q.size(1), d, q)};
    return {dq, dk, dv, {}};
  }

 private:
  // This many tiles of scores in fp32, again in the input's dtype for 16 bits, and columns of fp32
  // numbers.
  static variable_list tiles_of(const at::Tensor& q, const at::Tensor& k, int64_t scores,
                                int64_t columns) {
    if (runs_on_gpu(q)) return {};
    const int64_t queries = q.size(2) >= 768 ? 256 : q.size(2) >= 192 ? 64 : 32;
    const int64_t rows = std::min(queries, q.size(2)), keys = std::min<int64_t>(512, k.size(2));
    const int64_t threads = at::get_num_threads();
    variable_list tiles{empty_fp32({threads, rows * (scores * keys + columns)}, q)};
    if (q.element_size() == 2) {
      tiles.push_back(at::empty({threads, scores, rows, keys}, q.options()));
    }
    return tiles;
  }
};

}  // namespace

at::Tensor counted_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& mask) {
  return CountedAttention::apply(q, k, v, mask.defined() ? std::optional(mask) : std::nullopt);
}

namespace counted {
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
  const auto work =
      cudnn_workspace(qkv.size(0) * qkv.size(1) * attention.heads, head_size(qkv, attention),
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

}  // namespace counted
}  // namespace tessera::ops
