// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "lib/core/meta.h"
#include "lib/model/linear_weights.h"
#include "lib/models/block_dropout.h"
#include "lib/models/decoder_block.h"
#include "lib/models/decoder_blocks.h"
#include "lib/models/layer_forward.h"
#include "lib/models/router_path.h"
#include "tessera/core/error.h"
#include "tessera/model/cut_rows.h"
#include "tessera/model/lora.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/functional.h"

namespace tessera {
namespace {

constexpr int kOutputs = 0, kInputs = 1;  // parallel dimension of a product

// Makes a layer's weights in drawing order.
class LayerWeights {
 public:
  LayerWeights(const DecoderConfig& config, BlockWeights& weights)
      : config_(config), family_(family_of(config)), weights_(weights) {}

  DecoderBlockWeights make(size_t layer) {
    const double deviation = config_.initializer_range;
    const double narrow = family_.narrow_ends
                              ? deviation / std::sqrt(2.0 * static_cast<double>(config_.layers))
                              : deviation;
    const int64_t h = config_.hidden, d = config_.head_size(), width = config_.heads * d,
                  key_width = config_.key_head_count() * d, inner = config_.inner_size();
    DecoderBlockWeights w;
    w.input_norm = norm(family_.input_norm);
    const bool bias = config_.query_key_value_bias;
    w.qkv.in_out = w.dense.in_out = w.up.in_out = w.down.in_out = family_.in_out;
    if (const auto& names = family_.query_key_value; names.size() == 1) {
      const int parts = family_.by_head ? 1 : 3;
      linear(w.qkv, names, h, {width + 2 * key_width}, deviation, kOutputs, bias, parts);
    } else {
      linear(w.qkv, names, h, {width, key_width, key_width}, deviation, kOutputs, bias);
    }
    linear(w.dense, {family_.dense}, width, {h}, narrow, kInputs, config_.dense_bias);
    if (config_.query_key_norm) {
      const bool of_all = config_.query_key_norm_of_all_heads;
      w.query_norm = head_norm(family_.query_norm, of_all ? width : d);
      w.key_norm = head_norm(family_.key_norm, of_all ? key_width : d);
    }
    if (config_.attention_sinks) {
      w.sinks = weights_.normal(family_.sinks, {config_.heads}, deviation);
      weights_.decays(true);
    }
    w.attention_norm = norm(family_.attention_norm);
    if (config_.has_experts(layer)) {
      w.experts = experts(deviation, narrow);
      if (config_.shared_inner > 0) add_shared_expert(w, deviation, narrow);
      return w;
    }
    linear(w.up, family_.up, h, std::vector<int64_t>(family_.up.size(), inner), deviation, kOutputs,
           config_.mlp_bias);
    linear(w.down, {family_.down}, inner, {h}, narrow, kInputs, config_.mlp_bias);
    return w;
  }

 private:
  NormWeights norm(const std::string& name) {
    NormWeights norm{weights_.constant(name + ".weight", {config_.hidden}, 1.0), {}};
    if (config_.norm == DecoderConfig::Norm::kLayer) {
      norm.bias = weights_.constant(name + ".bias", {config_.hidden}, 0.0);
    }
    return norm;
  }
  at::Tensor head_norm(const std::string& name, int64_t columns) {
    return weights_.constant(name + ".weight", {columns}, 1.0, {.partial_gradient = true});
  }
  ExpertWeights experts(double deviation, double narrow) {
    const int64_t n = config_.experts, h = config_.hidden, inner = config_.expert_inner;
    ExpertWeights made;
    const std::string up = family_.experts + ".gate_up_proj", down = family_.experts + ".down_proj";
    if (config_.clamped_experts) {
      made.clamped = true;
      made.router = weights_.normal(family_.router + ".weight", {n, h}, deviation);
      made.router_bias = weights_.normal(family_.router + ".bias", {n}, deviation);
      made.up = weights_.normal(up, {n, h, 2 * inner}, deviation);
      made.up_bias = weights_.constant(up + "_bias", {n, 2 * inner}, 0.0);
      weights_.decays(false);
      made.down = weights_.normal(down, {n, inner, h}, narrow);
      made.down_bias = weights_.constant(down + "_bias", {n, h}, 0.0);
      weights_.decays(false);
      made.up_adapters = weights_.tensor_adapters(up, {n, 2 * inner, h}, /*inputs_cut=*/false);
      made.down_adapters = weights_.tensor_adapters(down, {n, h, inner}, /*inputs_cut=*/true);
      return made;
    }
    // Gradients of a token's weights are sums over inner columns, of which a rank has a part.
    made.router =
        weights_.normal(family_.router + ".weight", {n, h}, deviation, {.partial_gradient = true});
    weights_.of_experts(true);
    made.up = weights_.normal(up, {n, 2 * inner, h}, deviation, {.dim = 1, .parts = 2});
    made.down = weights_.normal(down, {n, h, inner}, narrow, {.dim = 2});
    made.up_adapters = weights_.expert_adapters(up, {n, 2 * inner, h}, /*inputs_cut=*/false);
    made.down_adapters = weights_.expert_adapters(down, {n, h, inner}, /*inputs_cut=*/true);
    weights_.of_experts(false);
    return made;
  }
  void add_shared_expert(DecoderBlockWeights& w, double deviation, double narrow) {
    const int64_t h = config_.hidden, inner = config_.shared_inner;
    linear(w.up, family_.shared_up, h, {inner, inner}, deviation, kOutputs, /*bias=*/false);
    linear(w.down, {family_.shared_down}, inner, {h}, narrow, kInputs, /*bias=*/false);
    if (!config_.shared_gate) return;
    // Its gradient is a sum over inner columns, of which a rank has a part.
    w.shared_gate.weights.push_back(weights_.normal(family_.shared_gate + ".weight", {1, h},
                                                    deviation, {.partial_gradient = true}));
    w.shared_gate.adapters =
        weights_.adapters({family_.shared_gate}, {1}, h, /*inputs_cut=*/false, /*parts=*/0);
  }
  void linear(ProductWeights& to, const std::vector<std::string>& names, int64_t in,
              const std::vector<int64_t>& outs, double deviation, int shared, bool bias,
              int parts = 1) {
    for (size_t i = 0; i < names.size(); ++i) {
      std::vector<int64_t> shape{outs[i], in};
      if (to.in_out) std::swap(shape[0], shape[1]);
      const int dim = to.in_out ? 1 - shared : shared;
      to.weights.push_back(
          weights_.normal(names[i] + ".weight", shape, deviation, {.dim = dim, .parts = parts}));
      if (!bias) continue;
      const TensorCut with_outputs{.dim = shared == kOutputs ? 0 : -1, .parts = parts};
      to.biases.push_back(weights_.constant(names[i] + ".bias", {outs[i]}, 0.0, with_outputs));
    }
    to.adapters = weights_.adapters(names, outs, in, shared == kInputs, parts);
  }

  const DecoderConfig& config_;
  const DecoderFamily& family_;
  BlockWeights& weights_;
};

class DecoderLayer final : public DecoderPart, public LinearWeights {
 public:
  DecoderLayer(const DecoderConfig& config, const BuildContext& context, BlockWeights weights,
               size_t index)
      : DecoderPart(weights),
        attention_dropout_(config.attention_dropout),
        residual_dropout_(config.residual_dropout),
        dropout_(context, index),
        routers_(config, axis_),
        layer_(index - 1),
        w_(LayerWeights(config, weights).make(index - 1)) {
    parameters_ = weights.take();
    options_.axis = axis_;
    options_.expert_axis = w_.experts.defined() ? context.expert : nullptr;
    if (context.lora != nullptr) {
      options_.adapters.scale = context.lora->scale();
      adapter_dropout_ = context.lora->dropout;
      const bool adapts = !w_.experts.up_adapters.empty() || !w_.experts.down_adapters.empty();
      check(options_.expert_axis == nullptr || adapter_dropout_ == 0 || !adapts,
            ErrorCode::kInvalidArgument, "model ", config.name, ": a dropout of ", adapter_dropout_,
            " for adapters of experts is not built for an expert axis; leave it at 0 "
            "(--lora_dropout 0), adapt other layers, or leave the expert axis at 1");
    }
    options_.epsilon = config.epsilon;
    options_.residual_post_layernorm = config.residual_post_layernorm;
    options_.gated = config.gated;
    options_.exact_gelu = config.exact_gelu;
    options_.routing = {config.experts_per_token, config.normalised_routing, config.sigmoid_routing,
                        config.routing_scale};
    if (config.sigmoid_routing && w_.experts.defined()) {
      buffers_.push_back(
          weights.buffer(family_of(config).router + ".e_score_correction_bias", {config.experts}));
      options_.routing.bias = buffers_.back().tensor;
    }
    ops::SelfAttention& attention = options_.attention;
    attention.heads = config.heads / axis_.size();
    attention.key_heads = config.key_head_count() / axis_.size();
    attention.by_head = family_of(config).by_head;
    attention.window = config.window_of(index - 1);
    if (config.scale_attention) {
      attention.scale = 1.0 / std::sqrt(static_cast<double>(config.head_size()));
    }
    if (config.scale_attention_by_layer) attention.scale /= static_cast<double>(index);
    if (config.positions == DecoderConfig::Positions::kAlibi) {
      attention.slopes = ops::alibi_slopes(config.heads)
                             .narrow(0, axis_.rank() * attention.heads, attention.heads)
                             .to(context.device);
    } else if (config.positions == DecoderConfig::Positions::kRotary) {
      magnitude_ = config.rotary.magnitude;
      frequencies_ =
          ops::rotary_frequencies(config.rotary_columns(), config.rotary).to(context.device);
    }
  }

  at::Tensor forward(const at::Tensor& input, const MicroBatch& micro_batch,
                     const BlockContext& context) override {
    const auto [hidden, sums] = routers_.open(input, micro_batch);
    DecoderBlockOptions options = in_step(micro_batch, context, hidden.size(-1));
    at::Tensor own;
    if (sums.defined() && w_.experts.defined()) {
      options.counted_tokens = counted_tokens(micro_batch, context);
      options.router_sums = &own;
    }
    const at::Tensor output = layer_forward(this, hidden, w_, options, micro_batch, context);
    return routers_.close(output, sums, own, layer_);
  }

  std::vector<std::vector<std::string>> linear_weights(const Fp8Layers& of) override {
    std::vector<std::vector<std::string>> names;
    const std::pair<const ProductWeights*, bool> products[] = {
        {&w_.qkv, of.qkv}, {&w_.dense, of.o}, {&w_.up, of.up}, {&w_.down, of.down}};
    for (const auto& [product, wanted] : products) {
      if (!wanted || product->weights.empty())
        continue;  // empty: of a layer whose experts are alone
      std::vector<std::string>& of_product = names.emplace_back();
      for (const at::Tensor& weight : product->weights) {
        const auto is_it = [&](const Parameter& p) { return p.tensor.is_same(weight); };
        of_product.push_back(std::ranges::find_if(parameters_, is_it)->name);
      }
    }
    return names;
  }

  // Not with dropout of adapters, or of ALiBi attention, which draw from host seeds, nor with
  // experts, whose products wait for counts in some dtypes.
  bool is_recordable(bool training) const override {
    const bool composed = options_.attention.slopes.defined() && attention_dropout_ > 0;
    return !w_.experts.defined() && (!training || (adapter_dropout_ == 0 && !composed));
  }

  bool defers_gradients(const at::Tensor& hidden, const BlockContext& context) const override {
    if (w_.experts.defined()) return false;
    if (context.cut_rows != nullptr) {
      const bool drops = attention_dropout_ + residual_dropout_ + adapter_dropout_ > 0;
      if (context.cut_rows->attention_mask.defined() || (context.training && drops)) return false;
    }
    if (!options_.attention.slopes.defined()) return has_fused_kernels(hidden, context);
    return context.fused_layers || (runs_on_gpu(hidden) && attention_dropout_ == 0);
  }

 private:
  DecoderBlockOptions in_step(const MicroBatch& micro_batch, const BlockContext& context,
                              int64_t width) {
    DecoderBlockOptions options = options_;
    options.dropout = {dropout_.of(residual_dropout_, micro_batch, context, kContextDropout, width),
                       dropout_.of(residual_dropout_, micro_batch, context, kInnerDropout, width)};
    options.attention.dropout =
        dropout_.of_attention(attention_dropout_, context, options_.attention.heads);
    const ops::Dropout of_adapters =
        dropout_.of(adapter_dropout_, micro_batch, context, kAdapterDropout, width);
    options.adapters.dropout = of_adapters.probability;
    options.adapters.seed = of_adapters.seed;
    options.save_norm_outputs = context.save_norm_outputs;
    options.recompute_experts = context.recompute_experts;
    options.fp8 = context.fp8;
    options.fp8_layers = context.fp8_layers;
    options.fp8_weights = context.fp8_weights;
    options.gradient_columns = context.gradient_columns;
    options.deferred_gradients = context.deferred_gradients;
    options.recomputes = context.recomputes;
    options.kept_tensors = context.kept_tensors;
    options.cut_rows = context.cut_rows;
    options.expert_tokens = context.expert_tokens;
    if (!frequencies_.defined()) return options;
    options.positions = positions_of(micro_batch, context);
    options.rotary = tables_for(position_count(micro_batch, context));
    return options;
  }

  // Tables for at least this many positions.
  const ops::RotaryTables& tables_for(int64_t positions) {
    if (!tables_.cos.defined() || tables_.cos.size(0) < positions) {
      const at::NoGradGuard no_grad;
      if (tables_.cos.defined()) outgrown_.push_back(tables_);
      tables_ = ops::rotary_tables(
          frequencies_, static_cast<int64_t>(std::bit_ceil(uint64_t(positions))), magnitude_);
    }
    return tables_;
  }

  double attention_dropout_, residual_dropout_, adapter_dropout_ = 0;
  BlockDropout dropout_;
  RouterPath routers_;
  size_t layer_;
  DecoderBlockWeights w_;
  DecoderBlockOptions options_;
  at::Tensor frequencies_;  // undefined without rotary embedding
  double magnitude_ = 1;
  ops::RotaryTables tables_;
  std::vector<ops::RotaryTables> outgrown_;  // captured work may still read them
};

}  // namespace

std::unique_ptr<Block> make_layer(const DecoderConfig& config, const BuildContext& context,
                                  BlockWeights weights, size_t index) {
  return std::make_unique<DecoderLayer>(config, context, std::move(weights), index);
}

}  // namespace tessera
