// SPDX-License-Identifier: MIT
#include "lib/models/alibi_padding.h"

#include <ATen/ATen.h>

#include <cmath>

#include "lib/ops/random.h"
#include "tessera/ops/functional.h"

namespace tessera {
namespace {

// blind_context() with dropped probabilities: softmax of scores that are 0 but have gradients.
at::Tensor dropped_blind_context(const at::Tensor& qkv, const ops::SelfAttention& attention,
                                 const at::Tensor& blind) {
  const ops::QueriesKeysValues given = ops::split_heads(qkv, attention);
  const at::ScalarType wide = qkv.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto by_head = [&](const at::Tensor& x) { return x.to(wide).transpose(1, 2); };
  const at::Tensor q = by_head(given.q), k = by_head(given.k), v = by_head(given.v);
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * attention.scale;
  const at::Tensor probability = (scores - scores.detach()).softmax(3);
  const at::Tensor factors = ops::attention_factors(scores.sizes(), scores.scalar_type(),
                                                    attention.dropout, scores.device());
  const at::Tensor context = at::matmul(probability * factors, v).transpose(1, 2).flatten(2);
  return blind * context.to(qkv.scalar_type());
}

}  // namespace

// Queries without visible keys (padding on the left): transformers attends to every key of the row
// uniformly, and ops::alibi_attention returns 0. It matters where the first real token is a target:
// its prediction is made at the last padding position. Gradients reach queries and keys through a
// softmax at that uniform point: d context_i = d(scale q_i K^T (V - mean V)) / S, with V held
// fixed.
at::Tensor blind_context(const ops::QueriesKeysValues& given, const at::Tensor& blind) {
  const auto by_head = [](const at::Tensor& x) { return x.transpose(1, 2); };  // [b, heads, S, d]
  const at::Tensor q = by_head(given.q), k = by_head(given.k), v = by_head(given.v);
  const at::Tensor mean = v.mean(2, /*keepdim=*/true);
  const double scale = 1.0 / (std::sqrt(static_cast<double>(q.size(3))) * k.size(2));
  // Scaled first, since fp16 overflows early.
  const at::Tensor deviation = ((v - mean) * scale).detach();
  const at::Tensor tilt = at::matmul(q, at::matmul(k.transpose(2, 3), deviation));
  const at::Tensor context = mean + (tilt - tilt.detach());
  return blind * context.transpose(1, 2).flatten(2);
}

at::Tensor padded_alibi_attention(const at::Tensor& qkv, const ops::SelfAttention& attention,
                                  const at::Tensor& mask) {
  const at::Tensor context =
      ops::alibi_attention(qkv, attention.slopes, mask, {}, attention.dropout);
  if (mask.is_cpu() && mask.select(1, 0).all().item<bool>()) return context;  // no query is blind
  const at::Tensor blind = mask.cumsum(1).eq(0).unsqueeze(2).to(qkv.scalar_type());
  return context + (attention.dropout.on()
                        ? dropped_blind_context(qkv, attention, blind)
                        : blind_context(ops::split_heads(qkv, attention), blind));
}

}  // namespace tessera
