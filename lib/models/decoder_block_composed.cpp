// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include <vector>

#include "lib/core/meta.h"
#include "lib/models/block_adapters.h"
#include "lib/models/cut_dropout.h"
#include "lib/models/decoder_block.h"
#include "lib/models/expert_feed_forward.h"
#include "lib/models/linear_fp8.h"
#include "tessera/core/micro_batch.h"
#include "tessera/ops/functional.h"

namespace tessera {
namespace {

using detail::BlockProduct;
using detail::LinearFp8;
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

// One product of all weights in 8 bits, with their biases and adapters.
at::Tensor joint_fp8(const at::Tensor& x, const ProductWeights& p, const at::Tensor& bias,
                     const LinearFp8& products, const ProductAdapters& adapters) {
  const at::Tensor y = detail::linear_fp8(x, p, bias, products);
  if (!adapters.any()) return y;
  std::vector<at::Tensor> parts;
  int64_t column = 0;
  for (size_t i = 0; i < p.weights.size(); ++i) {
    const at::Tensor part = y.narrow(-1, column, p.outputs(i)), adapted = adapters.forward(x, i);
    parts.push_back(adapted.defined() ? part + adapted : part);
    column += p.outputs(i);
  }
  return at::cat(parts, -1);
}

// Of what has entered the tensor axis.
at::Tensor columns_of(const at::Tensor& entered, const ProductWeights& p,
                      const DecoderBlockOptions& options, BlockProduct kind) {
  const ProductAdapters adapters(p, options, kind);
  if (detail::is_in_fp8(options, kind)) {
    const at::Tensor bias = p.biases.empty() ? at::Tensor() : at::cat(at::TensorList(p.biases));
    return joint_fp8(entered, p, bias, LinearFp8(options, kind), adapters);
  }
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < p.weights.size(); ++i) {
    results.push_back(product(entered, p, i, bias_of(p, i), adapters));
  }
  return results.size() == 1 ? results.front() : at::cat(results, -1);
}

at::Tensor by_columns(const at::Tensor& x, const ProductWeights& p, at::IntArrayRef tokens,
                      const DecoderBlockOptions& options, BlockProduct kind) {
  const bool adapted = ProductAdapters(p, options, kind).any();
  if (!detail::is_in_fp8(options, kind) && p.weights.size() == 1 && !p.in_out && !adapted) {
    return column_parallel_linear(x, p.weights[0], bias_of(p, 0), tokens, options.axis);
  }
  return columns_of(enter_tensor_ranks(x, tokens, options.axis), p, options, kind);
}

// The rank's part of a row-parallel product, without its bias.
at::Tensor part_of_rows(const at::Tensor& x, const ProductWeights& p,
                        const DecoderBlockOptions& options, BlockProduct kind) {
  const ProductAdapters adapters(p, options, kind);
  return detail::is_in_fp8(options, kind) ? joint_fp8(x, p, {}, LinearFp8(options, kind), adapters)
                                          : product(x, p, 0, {}, adapters);
}

at::Tensor by_rows(const at::Tensor& x, const ProductWeights& p, const DecoderBlockOptions& options,
                   BlockProduct kind) {
  const TensorAxis& axis = options.axis;
  const ProductAdapters adapters(p, options, kind);
  const at::Tensor bias = bias_of(p, 0);
  if (!detail::is_in_fp8(options, kind)) {
    if (!p.in_out && !adapters.any()) return row_parallel_linear(x, p.weights[0], bias, axis);
    if (axis.size() == 1) return product(x, p, 0, bias, adapters);
  }
  const at::Tensor part = part_of_rows(x, p, options, kind);
  const at::Tensor sum = axis.size() == 1 ? part : leave_tensor_ranks(part, axis);
  return bias.defined() ? sum + bias : sum;
}

at::Tensor activated(const at::Tensor& inner, const DecoderBlockOptions& options) {
  if (!options.gated) return options.exact_gelu ? at::gelu(inner) : ops::gelu_tanh(inner);
  const auto parts = inner.chunk(2, -1);
  return ops::swiglu(parts[0], parts[1]);
}

// See shared_expert.h.
at::Tensor shared_expert(const at::Tensor& entered, const DecoderBlockWeights& w,
                         const DecoderBlockOptions& options) {
  at::Tensor inner = activated(columns_of(entered, w.up, options, BlockProduct::kUp), options);
  if (!w.shared_gate.weights.empty()) {
    inner =
        inner * columns_of(entered, w.shared_gate, options, BlockProduct::kSharedGate).sigmoid();
  }
  return part_of_rows(inner, w.down, options, BlockProduct::kDown);
}

}  // namespace

at::Tensor decoder_block_composed(const at::Tensor& hidden, const DecoderBlockWeights& w,
                                  const DecoderBlockOptions& options, at::IntArrayRef tokens,
                                  const DecoderAttention& attention) {
  const bool post = options.residual_post_layernorm;
  const auto branch = [&](const at::Tensor& x, size_t number) {
    return dropout_of_cut(x, options.dropout[number], options.cut_rows.get());
  };
  const at::Tensor normed = norm(hidden, w.input_norm, options.epsilon);
  const at::Tensor context =
      attention(by_columns(normed, w.qkv, tokens, options, BlockProduct::kQkv), w.sinks);
  const at::Tensor attended = (post ? normed : hidden) +
                              branch(by_rows(context, w.dense, options, BlockProduct::kDense), 0);

  const at::Tensor normed_again = norm(attended, w.attention_norm, options.epsilon);
  if (w.experts.defined()) {
    const TensorAxis& axis = options.axis;
    const at::Tensor entered = enter_tensor_ranks(normed_again, tokens, axis);
    at::Tensor sum = detail::experts(entered, w, options);
    if (w.has_shared_expert()) sum = sum + shared_expert(entered, w, options);
    return attended + branch(axis.size() == 1 ? sum : leave_tensor_ranks(sum, axis), 1);
  }
  const at::Tensor inner =
      activated(by_columns(normed_again, w.up, tokens, options, BlockProduct::kUp), options);
  return (post ? normed_again : attended) +
         branch(by_rows(inner, w.down, options, BlockProduct::kDown), 1);
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
