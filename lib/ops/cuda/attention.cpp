// Chooses between the attention graph, LibTorch's kernel (with dropout) and the reference. Key
// masks take the reference: per-key tensors have wrong gradients in cuDNN 9.19's backward graph.
// Padding on the right needs no mask under causal attention, so training rarely comes here with
// one.
#include <algorithm>
#include <type_traits>

#include "lib/ops/cuda/attention_graph.h"
#include "lib/ops/cuda/entries.h"
#include "lib/ops/cuda/support.h"
#include "lib/ops/packed.h"
#include "lib/ops/random.h"

namespace tessera::ops::cuda {
namespace {

AttentionShape shape_of(const Stretch& stretch, const at::Tensor& qkv,
                        const SelfAttention& attention, const PackedRows& packed) {
  return {.batch = stretch.sequences,
          .sequence = stretch.length,
          .heads = attention.heads,
          .key_heads = attention.key_heads,
          .d = qkv.size(2) / (attention.heads + 2 * attention.key_heads),
          .type = qkv.scalar_type(),
          .scale = float(attention.scale),
          .by_head = attention.by_head,
          .alibi = attention.slopes.defined(),
          .packed = packed.defined()};
}

bool fits_graph(const at::Tensor& qkv, const SelfAttention& attention, const at::Tensor& mask,
                const PackedRows& packed) {
  const at::Tensor& slopes = attention.slopes;
  if (attention.dropout.on() || mask.defined() || !fits(qkv.scalar_type(), {qkv}) ||
      qkv.numel() == 0)
    return false;
  if (slopes.defined() && (slopes.scalar_type() != at::kFloat || !slopes.is_contiguous())) {
    return false;
  }
  return std::ranges::all_of(stretches(qkv, packed), [&](const Stretch& stretch) {
    return has_attention_graph(shape_of(stretch, qkv, attention, packed));
  });
}

// Where a stretch begins in a tensor whose tokens follow each other.
template <typename T>
T* at_token(T* data, int64_t token, int64_t bytes_a_token) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return data ? static_cast<T*>(static_cast<Byte*>(data) + token * bytes_a_token) : nullptr;
}

AttentionPointers part_of(const AttentionPointers& all, const Stretch& stretch,
                          const AttentionShape& shape) {
  const int64_t bytes = int64_t(at::elementSize(shape.type)) * shape.d, first = stretch.first;
  const int64_t wide = (shape.heads + 2 * shape.key_heads) * bytes, one = shape.heads * bytes;
  AttentionPointers part = all;
  part.qkv = at_token(all.qkv, first, wide);
  part.first_keys = at_token(all.first_keys, first, sizeof(int32_t));
  part.output = at_token(all.output, first, one);
  part.log_sum_exp = at_token(all.log_sum_exp, first, shape.heads * int64_t(sizeof(float)));
  part.gradient = at_token(all.gradient, first, one);
  part.dqkv = at_token(all.dqkv, first, wide);
  return part;
}

bool fits_flash(const at::Tensor& qkv, const SelfAttention& attention, const at::Tensor& mask) {
  const int64_t d = qkv.size(2) / (attention.heads + 2 * attention.key_heads);
  return attention.dropout.on() && !mask.defined() && !attention.slopes.defined() &&
         fits(qkv.scalar_type(), {qkv}) && qkv.numel() > 0 && d % 8 == 0 && d <= 256;
}

// As LibTorch's kernel takes them: packed rows in one sequence, each from its offset on.
struct FlashInputs {
  at::Tensor q, k, v;
  std::optional<at::Tensor> offsets;
  int64_t longest;
};

FlashInputs flash_inputs(const at::Tensor& qkv, const SelfAttention& attention,
                         const PackedRows& packed) {
  const auto [q, k, v] = split_heads(qkv, attention);
  if (!packed.defined()) return {q, k, v, std::nullopt, qkv.size(1)};
  return {q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), packed.offsets, packed.longest()};
}

AttentionOutput flash_forward(const at::Tensor& qkv, const SelfAttention& attention,
                              const PackedRows& packed) {
  const AttentionDropout& dropout = attention.dropout;
  const SeededDevice seeded(qkv.device(), mixed_seed(dropout.seed, dropout.first_head));
  const auto [q, k, v, offsets, longest] = flash_inputs(qkv, attention, packed);
  auto [output, log_sum_exp, random_state, unused, mask] = at::_flash_attention_forward(
      q, k, v, offsets, offsets, longest, longest, dropout.probability, /*is_causal=*/true,
      /*return_debug_mask=*/false, attention.scale);
  return {output.reshape({qkv.size(0), qkv.size(1), -1}), log_sum_exp, random_state};
}

at::Tensor flash_backward(const at::Tensor& gradient, const at::Tensor& qkv,
                          const SelfAttention& attention, const AttentionOutput& forward,
                          const PackedRows& packed) {
  const auto [q, k, v, offsets, longest] = flash_inputs(qkv, attention, packed);
  const at::Tensor lengths = offsets.value_or(at::Tensor());
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      gradient.reshape(q.sizes()), q, k, v, forward.output.view(q.sizes()), forward.log_sum_exp,
      lengths, lengths, longest, longest, attention.dropout.probability, /*is_causal=*/true,
      forward.random_state, forward.random_state, attention.scale);
  const auto heads = dq.dim() - 2;
  return (attention.by_head ? at::stack({dq, dk, dv}, heads + 1) : at::cat({dq, dk, dv}, heads))
      .view(qkv.sizes());
}

}  // namespace

AttentionOutput attention_forward(const at::Tensor& qkv, const SelfAttention& attention,
                                  const at::Tensor& attention_mask, const PackedRows& packed) {
  if (fits_flash(qkv, attention, attention_mask)) return flash_forward(qkv, attention, packed);
  if (!fits_graph(qkv, attention, attention_mask, packed)) {
    return reference::attention_forward(qkv, attention, attention_mask, packed);
  }
  const int64_t batch = qkv.size(0), sequence = qkv.size(1), heads = attention.heads;
  const int64_t d = qkv.size(2) / (heads + 2 * attention.key_heads);
  // log_sum_exp holds one stretch after the other, each [sequences, heads, length].
  AttentionOutput result{at::empty({batch, sequence, heads * d}, qkv.options()),
                         at::empty({batch, heads, sequence}, qkv.options().dtype(at::kFloat))};
  const AttentionPointers all{.qkv = qkv.data_ptr(),
                              .slopes = data_or_null(attention.slopes),
                              .first_keys = data_or_null(packed.first_keys),
                              .output = result.output.data_ptr(),
                              .log_sum_exp = result.log_sum_exp.data_ptr()};
  for (const Stretch& stretch : stretches(qkv, packed)) {
    const AttentionShape shape = shape_of(stretch, qkv, attention, packed);
    run_attention_forward(shape, part_of(all, stretch, shape));
  }
  return result;
}

at::Tensor attention_backward(const at::Tensor& gradient, const at::Tensor& qkv,
                              const SelfAttention& attention, const at::Tensor& attention_mask,
                              const AttentionOutput& forward, const PackedRows& packed) {
  if (fits_flash(qkv, attention, attention_mask)) {
    return flash_backward(gradient, qkv, attention, forward, packed);
  }
  if (!fits_graph(qkv, attention, attention_mask, packed)) {
    return reference::attention_backward(gradient, qkv, attention, attention_mask, forward, packed);
  }
  at::Tensor dqkv = at::empty_like(qkv);
  at::Tensor incoming = gradient.contiguous();
  if (!is_aligned(incoming)) incoming = incoming.clone();
  const AttentionPointers all{.qkv = qkv.data_ptr(),
                              .slopes = data_or_null(attention.slopes),
                              .first_keys = data_or_null(packed.first_keys),
                              .output = forward.output.data_ptr(),
                              .log_sum_exp = forward.log_sum_exp.data_ptr(),
                              .gradient = incoming.data_ptr(),
                              .dqkv = dqkv.data_ptr()};
  for (const Stretch& stretch : stretches(qkv, packed)) {
    const AttentionShape shape = shape_of(stretch, qkv, attention, packed);
    run_attention_backward(shape, part_of(all, stretch, shape));
  }
  return dqkv;
}

// Heads are contiguous and tokens equally far apart, in the query and key part of a wider row.
void rotary_(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
             const at::Tensor& positions, bool back) {
  const int64_t d = x.size(3), stride = x.stride(1);
  const bool fit =
      is_16_bit(x) && is_aligned(x) && d % 16 == 0 && x.stride(3) == 1 && x.stride(2) == d &&
      stride % 8 == 0 && (x.size(0) == 1 || x.stride(0) == x.size(1) * stride) && x.numel() > 0 &&
      cos.scalar_type() == at::kFloat && cos.is_contiguous() && sin.scalar_type() == at::kFloat &&
      sin.is_contiguous() &&
      (!positions.defined() || (positions.scalar_type() == at::kLong && positions.is_contiguous()));
  if (!fit) return reference::rotary_(x, cos, sin, positions, back);
  rotary(type_of(x),
         {.x = x.data_ptr(),
          .token_stride = stride,
          .tokens = x.size(0) * x.size(1),
          .sequence = x.size(1),
          .heads = int(x.size(2)),
          .d = int(d),
          .cos = static_cast<const float*>(cos.const_data_ptr()),
          .sin = static_cast<const float*>(sin.const_data_ptr()),
          .positions = static_cast<const int64_t*>(data_or_null(positions)),
          .back = back},
         stream());
  check_launch("rotary");
}

}  // namespace tessera::ops::cuda
