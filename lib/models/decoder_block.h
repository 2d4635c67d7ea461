// SPDX-License-Identifier: MIT
#pragma once
// The transformer block of all decoders as one function of its weights: norm, attention,
// projection, norm, feed-forward, with two residual branches.
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <functional>
#include <memory>

#include "lib/ops/routing.h"
#include "tessera/model/cut_rows.h"
#include "tessera/model/tensor_parallel.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/fp8.h"
#include "tessera/ops/kernels.h"

namespace tessera {

namespace ops {
class Fp8Weights;
}

struct Fp8Pass;
class KeptTensors;

struct NormWeights {
  at::Tensor weight, bias;  // [h]; without a bias it is an RMS norm
};

// LoRA weights of a product; undefined: none.
struct LoraWeights {
  at::Tensor a, b;  // [r, in], [out, r]
  bool defined() const { return a.defined(); }
};

// x W^T + b: one product, or several of the same x with results side by side.
struct ProductWeights {
  c10::SmallVector<at::Tensor, 3> weights;  // [out, in] each
  c10::SmallVector<at::Tensor, 3> biases;   // [out] each, or empty
  bool in_out = false;  // the single weight is stored [in, out], as by GPT-2's Conv1D
  c10::SmallVector<LoraWeights, 3> adapters;  // one per weight, or empty

  int64_t outputs(size_t i) const { return weights[i].size(in_out ? 1 : 0); }
};

// A mixture of experts (expert_feed_forward.h), with gated feed-forward layers of I inner columns.
// Undefined: none.
struct ExpertWeights {
  at::Tensor router;  // [experts, h]
  at::Tensor up;      // [experts, 2 I, h], gate before up
  at::Tensor down;    // [experts, h, I]
  // With matrices of every expert: A [experts, r, in], B [experts, out, r]. Of up one for gate and
  // up together, or one of each; empty: none.
  c10::SmallVector<LoraWeights, 2> up_adapters = {}, down_adapters = {};
  // gpt-oss' form: up is [experts, h, 2 I] with gates in even columns, down [experts, I, h], the
  // activation is that of lib/ops/clamped_swiglu.h, and all three have biases.
  bool clamped = false;
  at::Tensor router_bias = {}, up_bias = {}, down_bias = {};  // [experts], [experts, 2 I or h]
  bool defined() const { return router.defined(); }
};

// All A before all B.
template <typename Adapters, typename Function>
void for_each_adapter(Adapters& adapters, const Function& function) {
  for (auto& adapter : adapters) {
    if (adapter.a.defined()) function(adapter.a);
  }
  for (auto& adapter : adapters) {
    if (adapter.b.defined()) function(adapter.b);
  }
}

// In forward order; adapters and biases last.
template <typename Weights, typename Function>  // ExpertWeights, or constant ones
void for_each_tensor_of_experts(Weights& experts, const Function& function) {
  if (!experts.defined()) return;
  function(experts.router);
  function(experts.up);
  function(experts.down);
  for_each_adapter(experts.up_adapters, function);
  for_each_adapter(experts.down_adapters, function);
  if (!experts.clamped) return;
  function(experts.router_bias);
  function(experts.up_bias);
  function(experts.down_bias);
}

// In forward order. On a tensor axis products into attention and feed-forward are column-parallel,
// those out of them row-parallel; the latter's biases are replicated. Adapters are cut like their
// weight, B by outputs or A by inputs; the other matrix is replicated.
struct DecoderBlockWeights {
  NormWeights input_norm;
  ProductWeights qkv, dense;
  NormWeights attention_norm;
  // up in a gated block: gate and up. Beside experts: the shared expert's (shared_expert.h), or
  // without weights.
  ProductWeights up, down;
  ExpertWeights experts;
  // [d], shared by all heads, or [heads d] and [key_heads d], of all heads together; undefined:
  // none
  at::Tensor query_norm, key_norm;
  at::Tensor sinks = {};            // [heads], see ops::PieceAttention; undefined: none
  ProductWeights shared_gate = {};  // of the shared expert, 1 output; without weights: none

  bool has_shared_expert() const { return experts.defined() && !up.weights.empty(); }
};

// In declaration order; a product's weights precede its biases and adapters.
template <typename Function>
void for_each_tensor(DecoderBlockWeights& w, const Function& function) {
  const auto norm = [&](NormWeights& n) {
    function(n.weight);
    if (n.bias.defined()) function(n.bias);
  };
  const auto product = [&](ProductWeights& p) {
    for (at::Tensor& weight : p.weights) function(weight);
    for (at::Tensor& bias : p.biases) function(bias);
    for_each_adapter(p.adapters, function);
  };
  norm(w.input_norm);
  product(w.qkv);
  product(w.dense);
  norm(w.attention_norm);
  product(w.up);
  product(w.down);
  for_each_tensor_of_experts(w.experts, function);
  if (w.query_norm.defined()) function(w.query_norm);
  if (w.key_norm.defined()) function(w.key_norm);
  if (w.sinks.defined()) function(w.sinks);
  product(w.shared_gate);
}

struct AdapterOptions {
  double scale = 1;
  double dropout = 0;  // of the adapters' inputs
  uint64_t seed = 0;   // seed of that dropout
};

struct DecoderBlockOptions {
  double epsilon = 1e-5;
  bool residual_post_layernorm = false;  // residual branches start at the norms' outputs
  bool gated = false;                    // SwiGLU; false: GELU
  bool exact_gelu = false;               // with the error function; false: the tanh approximation
  ops::RoutingOptions routing;           // of experts
  ops::SelfAttention attention;          // of the rank's heads
  std::array<ops::Dropout, 2> dropout;   // of the residual branches, attention's first
  ops::RotaryTables rotary;              // undefined: no rotary embedding
  at::Tensor positions;                  // of the tokens, for rotary; undefined: column indices
  AdapterOptions adapters;
  at::Tensor counted_tokens;          // of router_sums: see ops::router_sums()
  at::Tensor* router_sums = nullptr;  // where forward leaves ops::router_sums(); null: not asked
  TensorAxis axis;
  Communicator* expert_axis = nullptr;  // ranks that own a part of the experts each; null: one rank
  int64_t expert_tokens = 0;            // see BlockContext
  std::shared_ptr<const CutRows> cut_rows;  // of dropout: where the tokens lie; null: in whole rows
  Fp8 fp8 = Fp8::kOff;                      // of the layers' products; not of the adapters'
  Fp8Layers fp8_layers;                     // the layers with such products
  std::shared_ptr<ops::Fp8Weights> fp8_weights;  // see BlockContext
  std::shared_ptr<Fp8Pass> fp8_pass;             // null: nothing is kept from forward to backward
  // For decoder_block_fused, see MicroBatch. Deferring is promised unless autograd sees a weight.
  bool save_norm_outputs = false;
  bool recompute_experts = false;  // as BlockContext::recompute_experts
  bool recomputes = false;  // as BlockContext::recomputes, in the last block of a recomputation
  std::shared_ptr<KeptTensors> kept_tensors;
  int64_t feed_forward_rows = 0;  // of a piece; 0: see piece_rows() of feed_forward_pieces.h
  std::shared_ptr<GradientColumns> gradient_columns;
  std::shared_ptr<DeferredGradients> deferred_gradients;
};

// Attention only: qkv [batch, sequence, (heads + 2 key_heads) d], sinks as the block's ->
// [batch, sequence, heads * d].
using DecoderAttention = std::function<at::Tensor(const at::Tensor& qkv, const at::Tensor& sinks)>;

// hidden [batch, sequence, h] -> same shape; with sequence parallelism the rank's own tokens
// (tessera/model/tensor_parallel.h). tokens: {batch, sequence}. Composed from tessera::ops for
// every device and dtype; the reference for decoder_block_fused(). attention applies head norms,
// rotary embedding and dropout itself.
at::Tensor decoder_block_composed(const at::Tensor& hidden, const DecoderBlockWeights& weights,
                                  const DecoderBlockOptions& options, at::IntArrayRef tokens,
                                  const DecoderAttention& attention);

// The same block with a hand-written backward that saves little and adds weight gradients to
// .grad() where defined (the Block contract). Other gradients are returned to autograd.
// attention_mask: [batch, sequence] bool or undefined; packed: rows inside the sequences, without a
// mask. attention, unless null, takes the place of the kernels: it gets normed and rotated queries
// and keys, and is differentiated by autograd.
at::Tensor decoder_block_fused(const at::Tensor& hidden, const DecoderBlockWeights& weights,
                               const DecoderBlockOptions& options, at::IntArrayRef tokens,
                               const at::Tensor& attention_mask = {}, const PackedRows& packed = {},
                               const DecoderAttention& attention = {});

// Forward only, without gradients, and with any attention, which gets normed and rotated queries
// and keys.
at::Tensor decoder_block_inference(const at::Tensor& hidden, const DecoderBlockWeights& weights,
                                   const DecoderBlockOptions& options, at::IntArrayRef tokens,
                                   const DecoderAttention& attention);

// has_fused_kernels(): true if decoder_block_fused has kernels for this micro-batch; otherwise it
// materialises scores. prefers_fused_block(): true if it has kernels for unmasked ones, or this
// micro-batch asks for it.
bool has_fused_kernels(const at::Tensor& hidden, const BlockContext& context);
bool prefers_fused_block(const at::Tensor& hidden, const MicroBatch& micro_batch,
                         const BlockContext& context);

}  // namespace tessera
