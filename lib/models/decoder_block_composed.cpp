// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include <vector>

#include "lib/core/meta.h"
#include "lib/models/block_adapters.h"
#include "lib/models/decoder_block.h"
#include "tessera/core/micro_batch.h"
#include "tessera/ops/functional.h"

namespace tessera {
namespace {

using detail::BlockProduct;
using detail::ProductAdapters;

at::Tensor norm(const at::Tensor& x, const NormWeights& w, double epsilon) {
  return w.bias.defined() ? ops::layer_norm(x, w.weight, w.bias, epsilon)
                          : ops::rms_norm(x, w.weight, epsilon);
}

at::Tensor bias_of(const ProductWeights& p, size_t index) {
  return p.biases.empty() ? at::Tensor() : p.biases[index];
}

at::Tensor product(const at::Tensor& x, const ProductWeights& p, size_t i, const at::Tensor& bias,
                   const ProductAdapters& adapters) {
  const at::Tensor result =
      p.in_out ? ops::linear_in_out(x, p.weights[i], bias) : ops::linear(x, p.weights[i], bias);
  const at::Tensor adapted = adapters.forward(x, i);
  return adapted.defined() ? result + adapted : result;
}

at::Tensor by_columns(const at::Tensor& x, const ProductWeights& p, at::IntArrayRef tokens,
                      const TensorAxis& axis, const ProductAdapters& adapters) {
  if (p.weights.size() == 1 && !p.in_out && !adapters.any()) {
    return column_parallel_linear(x, p.weights[0], bias_of(p, 0), tokens, axis);
  }
  const at::Tensor entered = enter_tensor_ranks(x, tokens, axis);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < p.weights.size(); ++i) {
    results.push_back(product(entered, p, i, bias_of(p, i), adapters));
  }
  return results.size() == 1 ? results.front() : at::cat(results, -1);
}

at::Tensor by_rows(const at::Tensor& x, const ProductWeights& p, const TensorAxis& axis,
                   const ProductAdapters& adapters) {
  const at::Tensor bias = bias_of(p, 0);
  if (!p.in_out && !adapters.any()) return row_parallel_linear(x, p.weights[0], bias, axis);
  if (axis.size() == 1) return product(x, p, 0, bias, adapters);
  const at::Tensor sum = leave_tensor_ranks(product(x, p, 0, {}, adapters), axis);
  return bias.defined() ? sum + bias : sum;
}

at::Tensor activated(const at::Tensor& inner, const DecoderBlockOptions& options) {
  if (!options.gated) return options.exact_gelu ? at::gelu(inner) : ops::gelu_tanh(inner);
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
    return ops::dropout(x, options.dropout[number]);
  };
  const auto adapters = [&](const ProductWeights& p, BlockProduct product) {
    return ProductAdapters(p, options, product);
  };
  const at::Tensor normed = norm(hidden, w.input_norm, options.epsilon);
  const at::Tensor context =
      attention(by_columns(normed, w.qkv, tokens, axis, adapters(w.qkv, BlockProduct::kQkv)));
  const at::Tensor attended =
      (post ? normed : hidden) +
      branch(by_rows(context, w.dense, axis, adapters(w.dense, BlockProduct::kDense)), 0);

  const at::Tensor normed_again = norm(attended, w.attention_norm, options.epsilon);
  const at::Tensor inner = activated(
      by_columns(normed_again, w.up, tokens, axis, adapters(w.up, BlockProduct::kUp)), options);
  return (post ? normed_again : attended) +
         branch(by_rows(inner, w.down, axis, adapters(w.down, BlockProduct::kDown)), 1);
}

bool has_fused_kernels(const at::Tensor& hidden, const BlockContext& context) {
  const bool sixteen_bit =
      hidden.scalar_type() == at::kBFloat16 || hidden.scalar_type() == at::kHalf;
  return (runs_on_gpu(hidden) && sixteen_bit) || context.fused_layers;
}

bool prefers_fused_block(const at::Tensor& hidden, const MicroBatch& micro_batch,
                         const BlockContext& context) {
  return has_fused_kernels(hidden, context) && !micro_batch.attention_mask.defined();
}

}  // namespace tessera
