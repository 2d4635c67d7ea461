#include "lib/models/bloom_block.h"

#include <ATen/ATen.h>

#include <cmath>

#include "lib/models/decoder_block.h"
#include "lib/ops/random.h"
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

DecoderBlockWeights by_part(const BloomBlockWeights& w) {
  return {.input_norm = {w.input_norm_weight, w.input_norm_bias},
          .qkv = {{w.qkv_weight}, {w.qkv_bias}},
          .dense = {{w.dense_weight}, {w.dense_bias}},
          .attention_norm = {w.attention_norm_weight, w.attention_norm_bias},
          .up = {{w.up_weight}, {w.up_bias}},
          .down = {{w.down_weight}, {w.down_bias}}};
}

// The same where probabilities are dropped: softmax of scores that are 0, but not their gradients.
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

DecoderBlockOptions options_of(const BloomBlockWeights& w, const at::Tensor& slopes, double epsilon,
                               bool residual_post_layernorm, const TensorAxis& axis,
                               const BloomBlockTraining& training) {
  DecoderBlockOptions options;
  options.epsilon = epsilon;
  options.residual_post_layernorm = residual_post_layernorm;
  options.attention = ops::alibi(slopes, w.dense_weight.size(1) / slopes.numel());
  options.attention.dropout = training.attention;
  options.dropout = training.hidden;
  options.keep_activations = training.keep_activations;
  options.gradient_columns = training.gradient_columns;
  options.axis = axis;
  return options;
}

}  // namespace

at::Tensor bloom_block_composed(const at::Tensor& hidden, const BloomBlockWeights& weights,
                                const at::Tensor& slopes, const at::Tensor& attention_mask,
                                double epsilon, bool residual_post_layernorm,
                                at::IntArrayRef tokens, const TensorAxis& axis,
                                const PackedRows& packed, const BloomBlockTraining& training) {
  const auto options =
      options_of(weights, slopes, epsilon, residual_post_layernorm, axis, training);
  return decoder_block_composed(
      hidden, by_part(weights), options, tokens, [&](const at::Tensor& qkv) {
        return ops::alibi_attention(qkv, slopes, attention_mask, packed, training.attention);
      });
}

at::Tensor bloom_block_padded(const at::Tensor& hidden, const BloomBlockWeights& weights,
                              const at::Tensor& slopes, const at::Tensor& attention_mask,
                              double epsilon, bool residual_post_layernorm, at::IntArrayRef tokens,
                              const TensorAxis& axis, const PackedRows&,
                              const BloomBlockTraining& training) {
  const at::Tensor& mask = attention_mask;
  const auto options =
      options_of(weights, slopes, epsilon, residual_post_layernorm, axis, training);
  const auto attention = [&](const at::Tensor& qkv) {
    const at::Tensor context = ops::alibi_attention(qkv, slopes, mask, {}, training.attention);
    if (mask.is_cpu() && mask.select(1, 0).all().item<bool>()) return context;  // none is blind
    const at::Tensor blind = mask.cumsum(1).eq(0).unsqueeze(2).to(qkv.scalar_type());
    return context + (training.attention.on() ? dropped_blind_context(qkv, options.attention, blind)
                                              : blind_context(qkv, slopes.size(0), blind));
  };
  return decoder_block_composed(hidden, by_part(weights), options, tokens, attention);
}

at::Tensor bloom_block_fused(const at::Tensor& hidden, const BloomBlockWeights& weights,
                             const at::Tensor& slopes, const at::Tensor& attention_mask,
                             double epsilon, bool residual_post_layernorm, at::IntArrayRef tokens,
                             const TensorAxis& axis, const PackedRows& packed,
                             const BloomBlockTraining& training) {
  const auto options =
      options_of(weights, slopes, epsilon, residual_post_layernorm, axis, training);
  return decoder_block_fused(hidden, by_part(weights), options, tokens, attention_mask, packed);
}

at::Tensor bloom_block_inference(const at::Tensor& hidden, const BloomBlockWeights& weights,
                                 const at::Tensor& slopes, double epsilon,
                                 bool residual_post_layernorm, at::IntArrayRef tokens,
                                 const TensorAxis& axis,
                                 const std::function<at::Tensor(const at::Tensor&)>& attention) {
  const auto options = options_of(weights, slopes, epsilon, residual_post_layernorm, axis, {});
  return decoder_block_inference(hidden, by_part(weights), options, tokens, attention);
}

}  // namespace tessera
