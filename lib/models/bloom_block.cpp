#include "tessera/models/bloom_block.h"

#include <ATen/ATen.h>

#include <cmath>

#include "tessera/ops/functional.h"

namespace tessera {
namespace {

// transformers lets a query without any visible key (padding on the left) look at every key of its
// row alike, where ops::alibi_attention gives 0. It matters where the first real token is a target:
// its prediction is made at the last padding position. Gradients reach queries and keys as through
// a softmax at that uniform point: d context_i = d(scale q_i K^T (V - mean V)) / S, V held fixed.
at::Tensor blind_context(const at::Tensor& qkv, int64_t heads, const at::Tensor& blind) {
  const at::Tensor parts = qkv.unflatten(2, {heads, 3, -1}).transpose(1, 2);  // [b, heads, S, 3, d]
  const at::Tensor q = parts.select(3, 0), k = parts.select(3, 1), v = parts.select(3, 2);
  const at::Tensor mean = v.mean(2, /*keepdim=*/true);
  const double scale = 1.0 / (std::sqrt(static_cast<double>(q.size(3))) * q.size(2));
  const at::Tensor deviation = ((v - mean) * scale).detach();  // scaled first: fp16 overflows early
  const at::Tensor tilt = at::matmul(q, at::matmul(k.transpose(2, 3), deviation));
  const at::Tensor context = mean + (tilt - tilt.detach());
  return blind * context.transpose(1, 2).flatten(2);
}

template <typename Attention>
at::Tensor run_block(const at::Tensor& hidden, const BloomBlockWeights& w, double epsilon,
                     bool residual_post_layernorm, at::IntArrayRef tokens, const TensorAxis& axis,
                     const Attention& attention) {
  const auto norm = [&](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    return ops::layer_norm(x, weight, bias, epsilon);
  };
  const at::Tensor normed = norm(hidden, w.input_norm_weight, w.input_norm_bias);
  const at::Tensor context =
      attention(column_parallel_linear(normed, w.qkv_weight, w.qkv_bias, tokens, axis));
  const at::Tensor attended = (residual_post_layernorm ? normed : hidden) +
                              row_parallel_linear(context, w.dense_weight, w.dense_bias, axis);

  const at::Tensor normed_again = norm(attended, w.attention_norm_weight, w.attention_norm_bias);
  const at::Tensor inner =
      ops::gelu_tanh(column_parallel_linear(normed_again, w.up_weight, w.up_bias, tokens, axis));
  return (residual_post_layernorm ? normed_again : attended) +
         row_parallel_linear(inner, w.down_weight, w.down_bias, axis);
}

}  // namespace

at::Tensor bloom_block_composed(const at::Tensor& hidden, const BloomBlockWeights& weights,
                                const at::Tensor& slopes, const at::Tensor& attention_mask,
                                double epsilon, bool residual_post_layernorm,
                                at::IntArrayRef tokens, const TensorAxis& axis,
                                const PackedRows& packed) {
  return run_block(hidden, weights, epsilon, residual_post_layernorm, tokens, axis,
                   [&](const at::Tensor& qkv) {
                     return ops::alibi_attention(qkv, slopes, attention_mask, packed);
                   });
}

at::Tensor bloom_block_padded(const at::Tensor& hidden, const BloomBlockWeights& weights,
                              const at::Tensor& slopes, const at::Tensor& attention_mask,
                              double epsilon, bool residual_post_layernorm, at::IntArrayRef tokens,
                              const TensorAxis& axis, const PackedRows&) {
  const at::Tensor& mask = attention_mask;
  const auto attention = [&](const at::Tensor& qkv) {
    const at::Tensor context = ops::alibi_attention(qkv, slopes, mask);
    if (mask.is_cpu() && mask.select(1, 0).all().item<bool>()) return context;  // none is blind
    const at::Tensor blind = mask.cumsum(1).eq(0).unsqueeze(2).to(qkv.scalar_type());
    return context + blind_context(qkv, slopes.size(0), blind);
  };
  return run_block(hidden, weights, epsilon, residual_post_layernorm, tokens, axis, attention);
}

}  // namespace tessera
