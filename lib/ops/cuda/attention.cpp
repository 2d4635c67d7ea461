// SPDX-License-Identifier: MIT
// Chooses the attention kernel: one for short rows, the cuDNN graph, LibTorch's (dropout, or
// windows in packed rows), or the reference. Key masks take the reference: per-key tensors have
// wrong gradients in cuDNN 9.19's backward graph. Padding on the right needs no mask under causal
// attention, so training rarely passes one.
#include "lib/ops/cuda/attention_graph.h"
#include "lib/ops/cuda/entries.h"
#include "lib/ops/cuda/recorded_generator.h"
#include "lib/ops/cuda/support.h"
#include "lib/ops/packed.h"
#include "lib/ops/random.h"

namespace tessera::ops::cuda {
namespace {

AttentionShape shape_of(const at::Tensor& qkv, const SelfAttention& attention,
                        const PackedRows& packed, int64_t d) {
  const bool by_sequence = packed.defined();
  return {.batch = by_sequence ? packed.first_keys.size(0) : qkv.size(0),
          .sequence = by_sequence ? packed.sequence : qkv.size(1),
          .heads = attention.heads,
          .key_heads = attention.key_heads,
          .d = d,
          .type = qkv.scalar_type(),
          .scale = float(attention.scale),
          .by_head = attention.by_head,
          .alibi = attention.slopes.defined(),
          .window = window_inside(attention, qkv.size(1), packed),
          .packed = by_sequence};
}

AttentionShape shape_of(const at::Tensor& qkv, const SelfAttention& attention,
                        const PackedRows& packed) {
  return shape_of(qkv, attention, packed, head_size(qkv, attention));
}

bool has_fit_slopes(const SelfAttention& attention) {
  const at::Tensor& slopes = attention.slopes;
  return !slopes.defined() || (slopes.scalar_type() == at::kFloat && slopes.is_contiguous());
}

bool has_graph(const SelfAttention& attention, const at::Tensor& mask,
               const AttentionShape& shape) {
  const bool modified = shape.alibi || shape.packed;
  return !attention.dropout.on() && !mask.defined() && has_fit_slopes(attention) &&
         !(modified && shape.window > 0) && has_attention_graph(shape);
}

bool fits_graph(const at::Tensor& qkv, const SelfAttention& attention, const at::Tensor& mask,
                const PackedRows& packed) {
  return fits(qkv.scalar_type(), {qkv}) && qkv.numel() > 0 &&
         has_graph(attention, mask, shape_of(qkv, attention, packed));
}

// Packed tokens [batch, sequence, n] as [sequences, sequence, n], padded with zero rows. Copied
// only if the last sequence is not full.
at::Tensor in_sequences(const at::Tensor& x, const PackedRows& packed) {
  if (!packed.defined()) return x;
  const int64_t tokens = x.size(0) * x.size(1), all = packed.first_keys.numel(), n = x.size(2);
  if (tokens == all) return x.view({-1, packed.sequence, n});
  const at::Tensor whole = at::empty({all, n}, x.options());
  whole.narrow(0, 0, tokens).copy_(x.view({tokens, n}));
  whole.narrow(0, tokens, all - tokens).zero_();
  return whole.view({-1, packed.sequence, n});
}

bool fits_rows(const at::Tensor& qkv, const SelfAttention& attention, const at::Tensor& mask,
               const PackedRows& packed) {
  return attends_by_row(qkv.scalar_type(), attention, head_size(qkv, attention), qkv.size(1),
                        packed) &&
         !mask.defined() && fits(qkv.scalar_type(), {qkv}) && qkv.numel() > 0 &&
         has_fit_slopes(attention);
}

// Arguments except the pointers of results and gradients.
RowAttention row_arguments(const at::Tensor& qkv, const SelfAttention& attention,
                           const PackedRows& packed) {
  const bool equal = !packed.defined();
  return {.qkv = qkv.const_data_ptr(),
          .offsets = equal ? nullptr : static_cast<const int32_t*>(packed.offsets.const_data_ptr()),
          .length = equal ? int(qkv.size(1)) : 0,
          .rows = int(equal ? qkv.size(0) : int64_t(packed.lengths.size())),
          .tokens = equal ? qkv.size(0) * qkv.size(1) : packed.positions.numel(),
          .heads = int(attention.heads),
          .key_heads = int(attention.key_heads),
          .d = int(head_size(qkv, attention)),
          .by_head = attention.by_head,
          .scale = float(attention.scale),
          .slopes = static_cast<const float*>(data_or_null(attention.slopes))};
}

// Clears the rows of x [batch, sequence, n] behind the packed tokens.
void clear_spare_rows(const at::Tensor& x, int64_t tokens) {
  const int64_t all = x.size(0) * x.size(1);
  if (all > tokens) x.view({all, x.size(2)}).narrow(0, tokens, all - tokens).zero_();
}

AttentionOutput row_forward(const at::Tensor& qkv, const SelfAttention& attention,
                            const PackedRows& packed) {
  RowAttention a = row_arguments(qkv, attention, packed);
  const int64_t columns = attention.heads * a.d;
  const at::Tensor output = empty({qkv.size(0), qkv.size(1), columns}, qkv, qkv.scalar_type());
  const at::Tensor log_sum_exp =
      empty({qkv.size(0), attention.heads, qkv.size(1)}, qkv, at::kFloat);
  clear_spare_rows(output, a.tokens);
  a.output = output.data_ptr(), a.log_sum_exp = static_cast<float*>(log_sum_exp.data_ptr());
  row_attention(type_of(qkv), a, stream());
  check_launch("row_attention");
  return {output, log_sum_exp};
}

at::Tensor row_backward(const at::Tensor& gradient, const at::Tensor& qkv,
                        const SelfAttention& attention, const AttentionOutput& forward,
                        const PackedRows& packed) {
  RowAttention a = row_arguments(qkv, attention, packed);
  at::Tensor incoming = gradient.contiguous();
  if (!is_aligned(incoming)) incoming = incoming.clone();
  const at::Tensor dqkv = empty_as(qkv);
  clear_spare_rows(dqkv, a.tokens);
  a.output = forward.output.data_ptr(), a.gradient = incoming.const_data_ptr();
  a.log_sum_exp = static_cast<float*>(forward.log_sum_exp.data_ptr()), a.dqkv = dqkv.data_ptr();
  row_attention_backward(type_of(qkv), a, stream());
  check_launch("row_attention_backward");
  return dqkv;
}

bool fits_flash(const at::Tensor& qkv, const SelfAttention& attention, const at::Tensor& mask,
                const PackedRows& packed) {
  const int64_t d = head_size(qkv, attention);
  return attends_by_flash(attention, qkv.size(1), packed) && !mask.defined() &&
         !attention.slopes.defined() && fits(qkv.scalar_type(), {qkv}) && qkv.numel() > 0 &&
         d % 8 == 0 && d <= 256;
}

// Inputs of LibTorch's flash kernel: packed rows form one sequence with offsets.
struct FlashInputs {
  at::Tensor q, k, v;
  std::optional<at::Tensor> offsets;
  int64_t longest;
  std::optional<int64_t> before;  // window: keys a query sees before its own
};

FlashInputs flash_inputs(const at::Tensor& qkv, const SelfAttention& attention,
                         const PackedRows& packed) {
  const auto [q, k, v] = split_heads(qkv, attention);
  std::optional<int64_t> before;
  if (attention.window > 0) before = attention.window - 1;
  if (!packed.defined()) return {q, k, v, std::nullopt, qkv.size(1), before};
  return {q.flatten(0, 1), k.flatten(0, 1),  v.flatten(0, 1),
          packed.offsets,  packed.longest(), before};
}

AttentionOutput flash_forward(const at::Tensor& qkv, const SelfAttention& attention,
                              const PackedRows& packed) {
  const AttentionDropout& dropout = attention.dropout;
  std::optional<SeededDevice> seeded;
  std::optional<RecordedGenerator> recorded;
  if (dropout.on() && dropout.seed_at.defined() && is_captured(stream())) {
    recorded.emplace(dropout.seed_at);
  } else if (dropout.on()) {
    seeded.emplace(qkv.device(), mixed_seed(dropout.seed, dropout.first_head));
  }
  const auto [q, k, v, offsets, longest, before] = flash_inputs(qkv, attention, packed);
  auto [output, log_sum_exp, random_state, unused, mask] = at::_flash_attention_forward(
      q, k, v, offsets, offsets, longest, longest, dropout.probability, /*is_causal=*/true,
      /*return_debug_mask=*/false, attention.scale, before);
  return {output.reshape({qkv.size(0), qkv.size(1), -1}), log_sum_exp, random_state};
}

at::Tensor flash_backward(const at::Tensor& gradient, const at::Tensor& qkv,
                          const SelfAttention& attention, const AttentionOutput& forward,
                          const PackedRows& packed) {
  const auto [q, k, v, offsets, longest, before] = flash_inputs(qkv, attention, packed);
  const at::Tensor lengths = offsets.value_or(at::Tensor());
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      gradient.reshape(q.sizes()), q, k, v, forward.output.view(q.sizes()), forward.log_sum_exp,
      lengths, lengths, longest, longest, attention.dropout.probability, /*is_causal=*/true,
      forward.random_state, forward.random_state, attention.scale, before);
  const auto heads = dq.dim() - 2;
  return (attention.by_head ? at::stack({dq, dk, dv}, heads + 1) : at::cat({dq, dk, dv}, heads))
      .view(qkv.sizes());
}

}  // namespace

AttentionOutput attention_forward(const at::Tensor& qkv, const SelfAttention& attention,
                                  const at::Tensor& attention_mask, const PackedRows& packed) {
  if (fits_rows(qkv, attention, attention_mask, packed)) {
    return row_forward(qkv, attention, packed);
  }
  if (fits_flash(qkv, attention, attention_mask, packed))
    return flash_forward(qkv, attention, packed);
  if (!fits_graph(qkv, attention, attention_mask, packed)) {
    return reference::attention_forward(qkv, attention, attention_mask, packed);
  }
  const AttentionShape shape = shape_of(qkv, attention, packed);
  const at::Tensor whole = in_sequences(qkv, packed);
  const at::Tensor output =
      empty({shape.batch, shape.sequence, shape.heads * shape.d}, qkv, qkv.scalar_type());
  const at::Tensor log_sum_exp = empty({shape.batch, shape.heads, shape.sequence}, qkv, at::kFloat);
  run_attention_forward(shape, {.qkv = whole.data_ptr(),
                                .slopes = data_or_null(attention.slopes),
                                .first_keys = data_or_null(packed.first_keys),
                                .output = output.data_ptr(),
                                .log_sum_exp = log_sum_exp.data_ptr()});
  return {given_tokens(output, qkv.sizes().slice(0, 2)), log_sum_exp};
}

at::Tensor attention_backward(const at::Tensor& gradient, const at::Tensor& qkv,
                              const SelfAttention& attention, const at::Tensor& attention_mask,
                              const AttentionOutput& forward, const PackedRows& packed) {
  if (fits_rows(qkv, attention, attention_mask, packed)) {
    return row_backward(gradient, qkv, attention, forward, packed);
  }
  if (fits_flash(qkv, attention, attention_mask, packed)) {
    return flash_backward(gradient, qkv, attention, forward, packed);
  }
  if (!fits_graph(qkv, attention, attention_mask, packed)) {
    return reference::attention_backward(gradient, qkv, attention, attention_mask, forward, packed);
  }
  const at::Tensor whole = in_sequences(qkv, packed);
  const at::Tensor output = in_sequences(forward.output, packed);
  at::Tensor incoming = in_sequences(gradient.contiguous(), packed);
  if (!is_aligned(incoming)) incoming = incoming.clone();
  const at::Tensor dqkv = empty_as(whole);
  run_attention_backward(shape_of(qkv, attention, packed),
                         {.qkv = whole.data_ptr(),
                          .slopes = data_or_null(attention.slopes),
                          .first_keys = data_or_null(packed.first_keys),
                          .output = output.data_ptr(),
                          .log_sum_exp = forward.log_sum_exp.data_ptr(),
                          .gradient = incoming.data_ptr(),
                          .dqkv = dqkv.data_ptr()});
  return given_tokens(dqkv, qkv.sizes().slice(0, 2));
}

bool attends_to_sequences(const at::Tensor& x, const SelfAttention& attention, int64_t d,
                          const at::Tensor& attention_mask, const PackedRows& packed) {
  return is_16_bit(x) && !attends_by_row(x.scalar_type(), attention, d, packed.sequence, packed) &&
         has_graph(attention, attention_mask, shape_of(x, attention, packed, d));
}

// Heads and tokens are equally spaced, in the query and key part of a wider row.
void rotary_(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
             const at::Tensor& positions, bool back) {
  const int64_t d = x.size(3), stride = x.stride(1), head_stride = x.stride(2);
  const bool fit =
      is_16_bit(x) && is_aligned(x) && d % 16 == 0 && x.stride(3) == 1 && head_stride % 8 == 0 &&
      stride % 8 == 0 && (x.size(0) == 1 || x.stride(0) == x.size(1) * stride) && x.numel() > 0 &&
      cos.scalar_type() == at::kFloat && cos.is_contiguous() && sin.scalar_type() == at::kFloat &&
      sin.is_contiguous() &&
      (!positions.defined() || (positions.scalar_type() == at::kLong && positions.is_contiguous()));
  if (!fit) return reference::rotary_(x, cos, sin, positions, back);
  rotary(type_of(x),
         {.x = x.data_ptr(),
          .token_stride = stride,
          .head_stride = head_stride,
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
