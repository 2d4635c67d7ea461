#include <ATen/ATen.h>

#include <vector>

#include "lib/core/meta.h"
#include "lib/models/decoder_block.h"
#include "tessera/core/micro_batch.h"
#include "tessera/ops/functional.h"

namespace tessera {
namespace {

at::Tensor norm(const at::Tensor& x, const NormWeights& w, double epsilon) {
  return w.bias.defined() ? ops::layer_norm(x, w.weight, w.bias, epsilon)
                          : ops::rms_norm(x, w.weight, epsilon);
}

at::Tensor bias_of(const ProductWeights& p, size_t index) {
  return p.biases.empty() ? at::Tensor() : p.biases[index];
}

at::Tensor by_columns(const at::Tensor& x, const ProductWeights& p, at::IntArrayRef tokens,
                      const TensorAxis& axis) {
  if (p.in_out) {
    return ops::linear_in_out(enter_tensor_ranks(x, tokens, axis), p.weights[0], bias_of(p, 0));
  }
  if (p.weights.size() == 1) {
    return column_parallel_linear(x, p.weights[0], bias_of(p, 0), tokens, axis);
  }
  const at::Tensor entered = enter_tensor_ranks(x, tokens, axis);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < p.weights.size(); ++i) {
    results.push_back(ops::linear(entered, p.weights[i], bias_of(p, i)));
  }
  return at::cat(results, -1);
}

at::Tensor by_rows(const at::Tensor& x, const ProductWeights& p, const TensorAxis& axis) {
  const at::Tensor bias = bias_of(p, 0);
  if (!p.in_out) return row_parallel_linear(x, p.weights[0], bias, axis);
  if (axis.size() == 1) return ops::linear_in_out(x, p.weights[0], bias);
  return leave_tensor_ranks(ops::linear_in_out(x, p.weights[0], {}), axis) + bias;
}

at::Tensor activated(const at::Tensor& inner, bool gated) {
  if (!gated) return ops::gelu_tanh(inner);
  const auto parts = inner.chunk(2, -1);
  return ops::swiglu(parts[0], parts[1]);
}

}  // namespace

at::Tensor decoder_block_composed(const at::Tensor& hidden, const DecoderBlockWeights& w,
                                  const DecoderBlockOptions& options, at::IntArrayRef tokens,
                                  const DecoderAttention& attention) {
  const TensorAxis& axis = options.axis;
  const bool post = options.residual_post_layernorm;
  const auto branch = [&](const at::Tensor& x, size_t number) {
    const ops::Dropout& dropout = options.dropout[number];
    return ops::dropout(x, dropout.probability, dropout.seed, dropout.first);
  };
  const at::Tensor normed = norm(hidden, w.input_norm, options.epsilon);
  const at::Tensor context = attention(by_columns(normed, w.qkv, tokens, axis));
  const at::Tensor attended = (post ? normed : hidden) + branch(by_rows(context, w.dense, axis), 0);

  const at::Tensor normed_again = norm(attended, w.attention_norm, options.epsilon);
  const at::Tensor inner = activated(by_columns(normed_again, w.up, tokens, axis), options.gated);
  return (post ? normed_again : attended) + branch(by_rows(inner, w.down, axis), 1);
}

bool prefers_fused_block(const at::Tensor& hidden, const MicroBatch& micro_batch) {
  const bool sixteen_bit =
      hidden.scalar_type() == at::kBFloat16 || hidden.scalar_type() == at::kHalf;
  const bool has_kernels = runs_on_gpu(hidden) && sixteen_bit;
  return (has_kernels || micro_batch.fused_layers) && !micro_batch.attention_mask.defined();
}

}  // namespace tessera
