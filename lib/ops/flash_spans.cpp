// SPDX-License-Identifier: MIT
#include "lib/ops/flash_spans.h"

#include <ATen/ATen.h>

#include <optional>

#include "lib/core/meta.h"
#include "lib/core/operation_range.h"
#include "lib/ops/counted_attention.h"

namespace tessera::ops {
namespace {

// Both products of forward.
OperationWork work_of(const at::Tensor& q, const RowSpan& span, double products) {
  return {.flops = 2 * products * span.pairs * static_cast<double>(q.size(2) * q.size(3))};
}

// Packed rows of a span are the kernels' rows of any lengths, [tokens, heads, d].
struct Arguments {
  at::Tensor q, k, v;
  std::optional<at::Tensor> query_offsets, key_offsets;
  int64_t longest_query, longest_key;
  std::optional<int64_t> before;  // keys that a query sees before its own
};

Arguments arguments_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const RowSpan& span, int64_t window) {
  const auto before = window > 0 ? std::optional(window - 1) : std::nullopt;
  if (!span.query_offsets.defined()) {
    return {q, k, v, std::nullopt, std::nullopt, span.queries, span.keys, before};
  }
  return {q.squeeze(0),     k.squeeze(0),       v.squeeze(0),     span.query_offsets,
          span.key_offsets, span.longest_query, span.longest_key, before};
}

FlashOutput counted_forward(const at::Tensor& q) {
  return {at::empty(q.sizes(), q.options()),
          counted::empty_fp32({q.size(0), q.size(2), q.size(1)}, q),
          at::empty({2}, q.options().dtype(at::kLong))};
}

FlashGradients counted_backward(const at::Tensor& q, const at::Tensor& k, const RowSpan& span) {
  const auto rows = span.query_offsets.defined() ? span.query_offsets.size(0) - 1 : 0;
  const at::Tensor sums =
      counted::flash_sums(q.size(0), q.size(1), static_cast<size_t>(rows), q.size(2), q.size(3), q);
  FlashGradients gradients{at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()),
                           at::empty(k.sizes(), k.options())};
  // With shared key heads, each query head has its own gradients before their sum.
  const bool apart = k.size(2) < q.size(2);
  const at::Tensor of_heads =
      apart ? at::empty({2, k.size(0), k.size(1), q.size(2), q.size(3)}, q.options())
            : at::Tensor();
  return gradients;
}

}  // namespace

bool takes_flash(const at::Tensor& q) {
  constexpr int64_t kMultiple = 8, kMost = 256;
  return runs_on_gpu(q) && counted::is_16_bit(q) && q.size(3) % kMultiple == 0 &&
         q.size(3) <= kMost;
}

FlashOutput flash_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const RowSpan& span, double scale, int64_t window) {
  const OperationRange range("piece_attention_forward", [&] { return work_of(q, span, 2); });
  if (q.is_meta()) return counted_forward(q);
  const Arguments a = arguments_of(q, k, v, span, window);
  // With unequal lengths "causal" aligns the last query with the last key.
  const auto [output, log_sum_exp, random_state, unused, mask] = at::_flash_attention_forward(
      a.q, a.k, a.v, a.query_offsets, a.key_offsets, a.longest_query, a.longest_key,
      /*dropout_p=*/0, /*is_causal=*/true, /*return_debug_mask=*/false, scale, a.before);
  return {output.view(q.sizes()), log_sum_exp, random_state};
}

FlashGradients flash_backward(const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const FlashOutput& forward, const RowSpan& span,
                              double scale, int64_t window) {
  const OperationRange range("piece_attention_backward", [&] { return work_of(q, span, 5); });
  if (q.is_meta()) return counted_backward(q, k, span);
  const Arguments a = arguments_of(q, k, v, span, window);
  const bool packed = span.query_offsets.defined();
  const auto rows = [&](const at::Tensor& x) { return packed ? x.squeeze(0) : x; };
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      rows(gradient), a.q, a.k, a.v, rows(forward.output), forward.log_sum_exp, span.query_offsets,
      span.key_offsets, a.longest_query, a.longest_key, /*dropout_p=*/0,
      /*is_causal=*/true, forward.random_state, forward.random_state, scale, a.before);
  return {dq.view(q.sizes()), dk.view(k.sizes()), dv.view(v.sizes())};
}

}  // namespace tessera::ops
