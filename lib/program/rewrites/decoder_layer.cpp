// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include <algorithm>
#include <initializer_list>

#include "lib/models/layer_forward.h"
#include "lib/program/rewrites/cut_context.h"
#include "lib/program/rewrites/layer_arguments.h"
#include "lib/program/rewrites/rotary_tables.h"
#include "tessera/core/micro_batch.h"

namespace tessera::program {
namespace {

at::Tensor layer_tensor(const std::vector<c10::IValue>& arguments, size_t place) {
  return arguments[place].isNone() ? at::Tensor() : arguments[place].toTensor();
}

ProductWeights product_of(const std::vector<c10::IValue>& arguments,
                          std::initializer_list<size_t> weights,
                          std::initializer_list<size_t> biases) {
  ProductWeights product;
  for (const size_t place : weights) {
    if (!arguments[place].isNone()) product.weights.push_back(arguments[place].toTensor());
  }
  for (const size_t place : biases) {
    if (!arguments[place].isNone()) product.biases.push_back(arguments[place].toTensor());
  }
  return product;
}

DecoderBlockWeights weights_of(const std::vector<c10::IValue>& arguments) {
  DecoderBlockWeights w;
  w.input_norm = {layer_tensor(arguments, kArgInputNorm),
                  layer_tensor(arguments, kArgInputNormBias)};
  w.qkv = product_of(arguments, {kArgQuery, kArgKey, kArgValue},
                     {kArgQueryBias, kArgKeyBias, kArgValueBias});
  w.dense = product_of(arguments, {kArgDense}, {kArgDenseBias});
  w.attention_norm = {layer_tensor(arguments, kArgAttentionNorm),
                      layer_tensor(arguments, kArgAttentionNormBias)};
  w.up = product_of(arguments, {kArgGate, kArgUp}, {kArgGateBias, kArgUpBias});
  w.down = product_of(arguments, {kArgDown}, {kArgDownBias});
  w.query_norm = layer_tensor(arguments, kArgQueryNorm);
  w.key_norm = layer_tensor(arguments, kArgKeyNorm);
  return w;
}

DecoderBlockOptions options_of(const std::vector<c10::IValue>& arguments,
                               const MicroBatch& micro_batch, const BlockContext& context,
                               const TensorAxis& axis) {
  DecoderBlockOptions options;
  options.axis = axis;
  options.epsilon = arguments[kArgEpsilon].toDouble();
  options.gated = arguments[kArgGated].toBool();
  options.exact_gelu = arguments[kArgExactGelu].toBool();
  options.attention.heads = arguments[kArgHeads].toInt() / axis.size();
  options.attention.key_heads = arguments[kArgKeyHeads].toInt() / axis.size();
  options.attention.scale = arguments[kArgScale].toDouble();
  options.attention.window = arguments[kArgWindow].toInt();
  options.save_norm_outputs = context.save_norm_outputs;
  options.gradient_columns = context.gradient_columns;
  options.deferred_gradients = context.deferred_gradients;
  options.kept_tensors = context.kept_tensors;
  if (arguments[kArgCos].isNone()) return options;
  options.positions = positions_of(micro_batch, context);
  options.rotary = rotary_tables_of(arguments[kArgCos].toTensor(), arguments[kArgSin].toTensor(),
                                    arguments[kArgHalved].toBool(), /*paired=*/false);
  return options;
}

// The micro-batch as the layer reads it: a proof has none, and some programs take no mask.
class LayerBatch {
 public:
  LayerBatch(const MicroBatch* given, const at::Tensor& hidden, bool padded) : given_(given) {
    if (given != nullptr && (padded || !given->attention_mask.defined())) return;
    if (given != nullptr) made_ = *given;
    made_.attention_mask = at::Tensor();
    if (given == nullptr) {
      made_.input_ids = at::empty({1, 1}, at::kLong).expand(hidden.sizes().slice(0, 2));
    }
    given_ = &made_;
  }
  const MicroBatch& get() const { return *given_; }

 private:
  const MicroBatch* given_;
  MicroBatch made_ = {};
};

at::Tensor run_layer(const std::vector<c10::IValue>& arguments, const RunContext& context) {
  static const BlockContext evaluation;
  static const TensorAxis alone;
  BlockContext block = context.block == nullptr ? evaluation : *context.block;
  const at::Tensor& hidden = arguments[kArgHidden].toTensor();
  const bool padded = arguments[kArgPadded].toBool();
  const LayerBatch batch(context.micro_batch, hidden, padded);
  block.cut_rows = cut_rows_for(block, padded);
  return layer_forward(
      context.cache_keys + arguments[kArgNumber].toInt(), hidden, weights_of(arguments),
      options_of(arguments, batch.get(), block, context.axis == nullptr ? alone : *context.axis),
      batch.get(), block);
}

std::optional<Proposal> propose_layer(const ProgramView& view, size_t anchor) {
  const Node& node = view.graph().nodes[anchor];
  if (node.target != "aten.add.Tensor" || number_of(node, "alpha").value_or(1) != 1) {
    return std::nullopt;
  }
  std::optional<Candidate> candidate = match_layer(view, node);
  if (!candidate) return std::nullopt;
  return Proposal{.candidates = {std::move(*candidate)}};
}

}  // namespace

Rewrite decoder_layer_rewrite() {
  return {"decoder layer", {"tessera.decoder_layer", run_layer}, propose_layer};
}

bool is_one_layer(const Graph& graph) {
  return graph.nodes.size() == 1 && graph.nodes[0].target == "tessera.decoder_layer";
}

bool shares_layer(const Node& layer, int ranks,
                  const std::function<TensorCut(ValueId parameter)>& cut_of) {
  const auto divides = [&](LayerArgument heads) {
    return std::get<int64_t>(std::get<Item>(layer.arguments[heads].value)) % ranks == 0;
  };
  const auto is_cut = [&](std::initializer_list<LayerArgument> places, int dim, bool partial) {
    return std::ranges::all_of(places, [&](LayerArgument place) {
      const auto* given = std::get_if<ValueRef>(&std::get<Item>(layer.arguments[place].value));
      if (given == nullptr) return true;
      const TensorCut cut = cut_of(given->id);
      return cut.dim == dim && cut.partial_gradient == partial;
    });
  };
  return divides(kArgHeads) && divides(kArgKeyHeads) &&
         is_cut({kArgQuery, kArgKey, kArgValue, kArgQueryBias, kArgKeyBias, kArgValueBias, kArgGate,
                 kArgUp, kArgGateBias, kArgUpBias},
                0, false) &&
         is_cut({kArgDense, kArgDown}, 1, false) &&
         is_cut({kArgInputNorm, kArgInputNormBias, kArgAttentionNorm, kArgAttentionNormBias,
                 kArgDenseBias, kArgDownBias},
                -1, false) &&
         is_cut({kArgQueryNorm, kArgKeyNorm}, -1, true);
}

std::vector<ValueId> layer_parameters(const Node& layer) {
  std::vector<ValueId> ids;
  for (size_t place = kArgInputNorm; place <= kArgKeyNorm; ++place) {
    const auto* value = std::get_if<ValueRef>(&std::get<Item>(layer.arguments[place].value));
    if (value != nullptr) ids.push_back(value->id);
  }
  return ids;
}

}  // namespace tessera::program
