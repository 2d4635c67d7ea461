// SPDX-License-Identifier: MIT
#pragma once
// The transformer block that all decoders share, as one function of its weights: norm, attention,
// projection, norm, feed-forward, with two residual branches.
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <functional>
#include <memory>

#include "tessera/model/tensor_parallel.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/kernels.h"

namespace tessera {

struct NormWeights {
  at::Tensor weight, bias;  // [h]; without a bias it is a root-mean-square norm
};

// A low-rank adapter beside a weight; undefined: it has none.
struct LoraWeights {
  at::Tensor a, b;  // [r, in], [out, r]
  bool defined() const { return a.defined(); }
};

// x W^T + b, one product or several of the same x, whose results lie side by side.
struct ProductWeights {
  c10::SmallVector<at::Tensor, 3> weights;    // [out, in] each
  c10::SmallVector<at::Tensor, 3> biases;     // [out] each, or none at all
  bool in_out = false;                        // the weight, only one, is stored [in, out]
  c10::SmallVector<LoraWeights, 3> adapters;  // one for each weight, or none at all

  int64_t outputs(size_t i) const { return weights[i].size(in_out ? 1 : 0); }
};

// In the order of the forward pass. On a tensor axis the products into attention and feed-forward
// are cut by outputs, those out of them by inputs; biases of the latter are whole on every rank.
// Adapters are cut as their weight is, B by outputs or A by inputs; the other one is whole.
struct DecoderBlockWeights {
  NormWeights input_norm;
  ProductWeights qkv, dense;
  NormWeights attention_norm;
  ProductWeights up, down;          // up of a gated block: gate and up
  at::Tensor query_norm, key_norm;  // [d], of each head; undefined: none
};

// In their order above, weights of a product before its biases and adapters.
template <typename Function>
void for_each_tensor(DecoderBlockWeights& w, const Function& function) {
  const auto norm = [&](NormWeights& n) {
    function(n.weight);
    if (n.bias.defined()) function(n.bias);
  };
  const auto product = [&](ProductWeights& p) {
    for (at::Tensor& weight : p.weights) function(weight);
    for (at::Tensor& bias : p.biases) function(bias);
    for (LoraWeights& adapter : p.adapters) {
      if (adapter.a.defined()) function(adapter.a);
    }
    for (LoraWeights& adapter : p.adapters) {
      if (adapter.b.defined()) function(adapter.b);
    }
  };
  norm(w.input_norm);
  product(w.qkv);
  product(w.dense);
  norm(w.attention_norm);
  product(w.up);
  product(w.down);
  if (w.query_norm.defined()) function(w.query_norm);
  if (w.key_norm.defined()) function(w.key_norm);
}

struct AdapterOptions {
  double scale = 1;
  double dropout = 0;  // of their inputs
  uint64_t seed = 0;   // what it draws from
};

struct DecoderBlockOptions {
  double epsilon = 1e-5;
  bool residual_post_layernorm = false;  // the residual branches start at the norms' outputs
  bool gated = false;                    // SwiGLU, else GELU
  bool exact_gelu = false;               // by the error function, else by tanh
  ops::SelfAttention attention;          // of the rank's heads
  std::array<ops::Dropout, 2> dropout;   // of what the residual branches add, attention's first
  ops::RotaryTables rotary;              // undefined: queries and keys are not turned
  at::Tensor positions;                  // of the tokens, for rotary; undefined: their columns
  AdapterOptions adapters;
  TensorAxis axis;
  // decoder_block_fused: see BlockContext. It promises unless autograd sees a weight.
  bool keep_activations = false;
  std::shared_ptr<GradientColumns> gradient_columns;
  std::shared_ptr<DeferredGradients> deferred_gradients;
};

// Attention alone: qkv [batch, sequence, (heads + 2 key_heads) d] -> [batch, sequence, heads * d].
using DecoderAttention = std::function<at::Tensor(const at::Tensor& qkv)>;

// hidden [batch, sequence, h] -> the same shape; under sequence parallelism the rank's own tokens
// (tessera/model/tensor_parallel.h). tokens: {batch, sequence}. Composed from tessera::ops; works
// on every device and dtype and is the reference for the other version. attention norms and turns
// queries and keys and drops probabilities by itself.
at::Tensor decoder_block_composed(const at::Tensor& hidden, const DecoderBlockWeights& weights,
                                  const DecoderBlockOptions& options, at::IntArrayRef tokens,
                                  const DecoderAttention& attention);

// The same with a hand-scheduled backward that keeps only what it needs and adds
// weight gradients to .grad() where that is defined (the Block contract); it hands autograd those
// of the others. attention_mask: [batch, sequence] bool or undefined; packed: rows inside the
// sequences, without a mask.
at::Tensor decoder_block_fused(const at::Tensor& hidden, const DecoderBlockWeights& weights,
                               const DecoderBlockOptions& options, at::IntArrayRef tokens,
                               const at::Tensor& attention_mask = {},
                               const PackedRows& packed = {});

// Its forward pass alone, without gradients and with any attention, whose queries and keys are
// normed and turned already.
at::Tensor decoder_block_inference(const at::Tensor& hidden, const DecoderBlockWeights& weights,
                                   const DecoderBlockOptions& options, at::IntArrayRef tokens,
                                   const DecoderAttention& attention);

// Whether decoder_block_fused has kernels for micro-batches without a mask, or this one asks for
// it; and whether it has them for this one: else it forms scores.
bool has_fused_kernels(const at::Tensor& hidden, const BlockContext& context);
bool prefers_fused_block(const at::Tensor& hidden, const MicroBatch& micro_batch,
                         const BlockContext& context);

}  // namespace tessera
