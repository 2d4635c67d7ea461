// SPDX-License-Identifier: MIT
#include "lib/ops/two_part_spans.h"

#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>

#include <algorithm>

#include "lib/core/meta.h"
#include "lib/core/operation_range.h"
#include "lib/ops/counted_attention.h"

namespace tessera::ops {
namespace {

at::Tensor swapped(const at::Tensor& x) { return x.transpose(1, 2); }

// A part's operands [batch, heads or key heads, tokens, d].
struct Part {
  at::Tensor q, k, v;
  bool is_causal = false;
};

Part before_queries(const Part& all, int64_t count) {
  return {all.q, all.k.narrow(2, 0, count), all.v.narrow(2, 0, count), false};
}

Part own_square(const Part& all, int64_t first) {
  const int64_t count = all.q.size(2);
  return {all.q, all.k.narrow(2, first, count), all.v.narrow(2, first, count), true};
}

// log_sum_exp fp32 (fp64 for fp64) [batch, heads, queries, 1].
struct PartOutput {
  at::Tensor output, log_sum_exp, seed, offset;
};

at::Tensor repeated(const at::Tensor& x, int64_t groups) {
  return groups == 1 ? x : x.repeat_interleave(groups, 1);
}

PartOutput attend(const Part& part, double scale) {
  if (part.q.is_cpu()) {
    const int64_t groups = part.q.size(1) / part.k.size(1);
    const auto [output, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(
        part.q, repeated(part.k, groups), repeated(part.v, groups), 0, part.is_causal, {}, scale);
    return {output, log_sum_exp.unsqueeze(3), {}, {}};
  }
  const auto made = at::_scaled_dot_product_cudnn_attention(
      part.q, part.k, part.v, {}, /*compute_log_sumexp=*/true, 0, part.is_causal,
      /*return_debug_mask=*/false, scale);
  const at::Tensor& sums = std::get<1>(made);
  return {std::get<0>(made), sums.dim() == 4 ? sums : sums.unsqueeze(3), std::get<6>(made),
          std::get<7>(made)};
}

// whole: of all parts.
FlashGradients attend_backward(const at::Tensor& gradient, const Part& part,
                               const PartOutput& whole, double scale) {
  if (part.q.is_cpu()) {
    const int64_t groups = part.q.size(1) / part.k.size(1);
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, part.q, repeated(part.k, groups), repeated(part.v, groups), whole.output,
        whole.log_sum_exp.squeeze(3), 0, part.is_causal, {}, scale);
    const auto of_keys = [&](const at::Tensor& x) { return x.unflatten(1, {-1, groups}).sum(2); };
    return {dq, of_keys(dk), of_keys(dv)};
  }
  const auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      gradient, part.q, part.k, part.v, whole.output, whole.log_sum_exp, whole.seed, whole.offset,
      {}, {}, {}, part.q.size(2), part.k.size(2), 0, part.is_causal, scale);
  return {dq, dk, dv};
}

PartOutput merged(const PartOutput& a, const PartOutput& b) {
  const auto wide = a.log_sum_exp.scalar_type();
  const at::Tensor share = (b.log_sum_exp - a.log_sum_exp).sigmoid();
  return {a.output.to(wide).lerp(b.output.to(wide), share).to(a.output.scalar_type()),
          at::logaddexp(a.log_sum_exp, b.log_sum_exp), a.seed, a.offset};
}

OperationWork work_of(const at::Tensor& q, const RowSpan& span, double products) {
  return {.flops = 2 * products * span.pairs * static_cast<double>(q.size(2) * q.size(3))};
}

bool takes_cudnn(const Part& part) {
  const bool shares = part.q.size(1) > part.k.size(1);
  return at::_fused_sdp_choice(part.q, part.k, part.v, {}, 0, part.is_causal, {}, shares) ==
         static_cast<int64_t>(at::SDPBackend::cudnn_attention);
}

// On meta, memory alone.
FlashOutput counted_forward(const at::Tensor& q, int64_t before) {
  FlashOutput made{at::empty(q.sizes(), q.options()),
                   counted::empty_fp32({q.size(0), q.size(2), q.size(1), 1}, q),
                   {}};
  if (before == 0) return made;
  const at::Tensor other = at::empty(q.sizes(), q.options());
  const at::Tensor wide = counted::empty_fp32(q.sizes(), q), also = at::empty_like(wide),
                   sum = at::empty_like(wide);
  return made;
}

FlashGradients counted_backward(const at::Tensor& q, const at::Tensor& k, int64_t before) {
  const at::Tensor other =
      before > 0 ? at::empty(q.sizes(), q.options()) : at::Tensor();  // of the other part
  const int64_t of_token = q.size(0) * q.size(2), queries = q.size(1);
  const auto work =
      counted::cudnn_workspace(of_token * queries, of_token * (before > 0 ? before : queries),
                               q.size(3), k.size(2) < q.size(2), q);
  return {at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()),
          at::empty(k.sizes(), k.options())};
}

}  // namespace

bool takes_two_parts(const at::Tensor& q, const at::Tensor& keys,
                     const std::vector<RowSpan>& spans) {
  constexpr int64_t kMostWidth = 128, kMultiple = 8;
  if (!runs_on_gpu(q) || !counted::is_16_bit(q) || q.size(3) > kMostWidth ||
      q.size(3) % kMultiple != 0) {
    return false;
  }
  return std::ranges::all_of(spans, [&](const RowSpan& span) {
    if (span.queries < 2 || span.query_offsets.defined()) return false;
    if (q.is_meta()) return true;
    const at::Tensor k = swapped(keys.narrow(1, span.first_key, span.keys));
    const Part all{swapped(q.narrow(1, span.first_query, span.queries)), k, k};
    const int64_t before = span.keys - span.queries;
    return takes_cudnn(own_square(all, before)) &&
           (before == 0 || (before > 1 && takes_cudnn(before_queries(all, before))));
  });
}

FlashOutput two_part_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const RowSpan& span, double scale) {
  const OperationRange range("piece_attention_forward", [&] { return work_of(q, span, 2); });
  const int64_t before = span.keys - span.queries;
  if (q.is_meta()) return counted_forward(q, before);
  const Part all{swapped(q), swapped(k), swapped(v)};
  PartOutput made = attend(own_square(all, before), scale);
  if (before > 0) made = merged(made, attend(before_queries(all, before), scale));
  // Both of backward's numbers for dropout, which is off.
  return {swapped(made.output), made.log_sum_exp, made.seed, made.offset};
}

FlashGradients two_part_backward(const at::Tensor& gradient, const at::Tensor& q,
                                 const at::Tensor& k, const at::Tensor& v,
                                 const FlashOutput& forward, const RowSpan& span, double scale) {
  const OperationRange range("piece_attention_backward", [&] { return work_of(q, span, 5); });
  const int64_t before = span.keys - span.queries;
  if (q.is_meta()) return counted_backward(q, k, before);
  const Part all{swapped(q), swapped(k), swapped(v)};
  const PartOutput whole{swapped(forward.output), forward.log_sum_exp, forward.random_state,
                         forward.random_offset};
  const at::Tensor dy = swapped(gradient);
  const FlashGradients square = attend_backward(dy, own_square(all, before), whole, scale);
  if (before == 0) return {swapped(square.q), swapped(square.k), swapped(square.v)};
  const FlashGradients rest = attend_backward(dy, before_queries(all, before), whole, scale);
  return {swapped(square.q + rest.q), swapped(at::cat({rest.k, square.k}, 2)),
          swapped(at::cat({rest.v, square.v}, 2))};
}

}  // namespace tessera::ops
