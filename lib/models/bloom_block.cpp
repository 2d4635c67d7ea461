#include "tessera/models/bloom_block.h"

#include "tessera/ops/functional.h"

namespace tessera {

at::Tensor bloom_block_composed(const at::Tensor& hidden, const BloomBlockWeights& weights,
                                const at::Tensor& slopes, const at::Tensor& attention_mask,
                                double epsilon, bool residual_post_layernorm) {
  const auto& w = weights;
  const at::Tensor normed =
      ops::layer_norm(hidden, w.input_norm_weight, w.input_norm_bias, epsilon);
  const at::Tensor context =
      ops::alibi_attention(ops::linear(normed, w.qkv_weight, w.qkv_bias), slopes, attention_mask);
  const at::Tensor attended = (residual_post_layernorm ? normed : hidden) +
                              ops::linear(context, w.dense_weight, w.dense_bias);

  const at::Tensor normed_again =
      ops::layer_norm(attended, w.attention_norm_weight, w.attention_norm_bias, epsilon);
  const at::Tensor inner = ops::gelu_tanh(ops::linear(normed_again, w.up_weight, w.up_bias));
  return (residual_post_layernorm ? normed_again : attended) +
         ops::linear(inner, w.down_weight, w.down_bias);
}

}  // namespace tessera
