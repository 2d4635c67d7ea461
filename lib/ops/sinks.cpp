// SPDX-License-Identifier: MIT
#include "lib/ops/sinks.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>

#include "lib/ops/attention_kernel.h"
#include "lib/ops/wide.h"
#include "tessera/core/error.h"

namespace tessera::ops {
namespace {

// One number a query and head, [sequences, queries, heads, 1]. log_sum_exp: of kernels, [sequences,
// heads, queries], with a last extent of 1 or not, or [heads, queries] of one packed sequence.
at::Tensor by_query(const at::Tensor& log_sum_exp, const at::Tensor& output) {
  check(log_sum_exp.numel() == output.numel() / output.size(3) &&
            (log_sum_exp.dim() > 2 || output.size(0) == 1),
        ErrorCode::kInternal, "sums of attention have shape ", log_sum_exp.sizes(), ", outputs ",
        output.sizes());
  if (log_sum_exp.dim() == 2) return log_sum_exp.t().unsqueeze(0).unsqueeze(3);
  const at::Tensor by_head = log_sum_exp.dim() == 4 ? log_sum_exp.squeeze(3) : log_sum_exp;
  return by_head.transpose(1, 2).unsqueeze(3);
}

// [heads, 1]
at::Tensor of_heads(const at::Tensor& sinks, const at::Tensor& like) {
  return sinks.to(like.scalar_type()).unsqueeze(1);
}

constexpr double kNever = -std::numeric_limits<double>::infinity();

}  // namespace

void add_sinks_(FlashOutput& made, const at::Tensor& sinks) {
  const at::Tensor before = by_query(made.log_sum_exp, made.output);
  const at::Tensor after = at::logaddexp(before, of_heads(sinks, before));
  made.output.mul_((before - after).exp_());
  made.log_sum_exp = after.squeeze(3).transpose(1, 2).contiguous().view(made.log_sum_exp.sizes());
}

at::Tensor gradient_of_sinks(const at::Tensor& gradient, const FlashOutput& forward,
                             const at::Tensor& sinks) {
  const at::Tensor sums = by_query(forward.log_sum_exp, forward.output);
  const at::Tensor probability = (of_heads(sinks, sums) - sums).exp_();
  const at::Tensor along =
      (gradient.to(sums.scalar_type()) * forward.output).sum(3, /*keepdim=*/true);
  return probability.mul_(along).sum({0, 1, 3}).neg_();
}

at::Tensor attend_with_sinks(const AttentionArguments& a, const at::Tensor& sinks) {
  const at::ScalarType dtype = wide(a.query);
  at::Tensor scores =
      (at::matmul(a.query, a.key.transpose(2, 3)) * a.scale.value_or(1.0)).to(dtype);
  if (a.mask) {
    scores = a.mask->scalar_type() == at::kBool ? scores.masked_fill(a.mask->logical_not(), kNever)
                                                : scores + *a.mask;
  }
  const at::Tensor last = of_heads(sinks, scores)
                              .unsqueeze(2)
                              .expand({scores.size(0), scores.size(1), scores.size(2), 1});
  const at::Tensor probability = at::cat({scores, last}, 3).softmax(3).narrow(3, 0, scores.size(3));
  return at::matmul(probability.to(a.value.scalar_type()), a.value);
}

at::Tensor sink_attention_to_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const CachedRows& rows, const SelfAttention& attention,
                                   const at::Tensor& sinks) {
  const at::NoGradGuard no_grad;
  const auto& [keys, values, lengths] = rows;
  const at::Tensor numbers = at::arange(q.size(0), lengths.options());
  keys.index_put_({numbers, lengths}, k.squeeze(1));
  values.index_put_({numbers, lengths}, v.squeeze(1));
  const at::Tensor distance =  // [batch, 1, 1, capacity]
      (at::arange(keys.size(1), lengths.options()) - lengths.unsqueeze(1))
          .unsqueeze(1)
          .unsqueeze(1);
  at::Tensor seen = distance.le(0);
  if (attention.window > 0) seen = seen.logical_and(distance.gt(-attention.window));
  const int64_t groups = q.size(2) / k.size(2);
  const auto of_queries = [&](const at::Tensor& x) {
    return x.to(q.scalar_type()).repeat_interleave(groups, 2).transpose(1, 2);
  };
  return attend_with_sinks({.query = q.transpose(1, 2),
                            .key = of_queries(keys),
                            .value = of_queries(values),
                            .mask = seen,
                            .scale = attention.scale},
                           sinks)
      .transpose(1, 2)
      .flatten(2);
}

}  // namespace tessera::ops
