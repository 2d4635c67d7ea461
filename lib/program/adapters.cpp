// SPDX-License-Identifier: MIT
#include "lib/program/adapters.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "lib/program/linear_layers.h"

namespace tessera::program {
namespace {

constexpr std::string_view kWeight = ".weight";

// A block's weight that gets an adapter.
struct AdaptedWeight {
  std::string a, b;  // the matrices' names in the program
  int64_t in = 0, out = 0;
};

// Adds the nodes of adapters to one piece.
class PieceAdapter {
 public:
  // training: of the variant that the piece belongs to.
  PieceAdapter(const BlockPiece& piece, const LoraRule& rule, bool training)
      : graph_(piece.interpreter->graph()), piece_(piece), rule_(rule), training_(training) {
    graph_.inputs = piece.inputs;
  }

  const Graph& graph() const { return graph_; }

  // The layers' weights by their names in the program.
  BlockPiece adapted(const std::vector<LinearLayer>& layers,
                     const std::map<ValueId, AdaptedWeight>& weights) {
    std::vector<Node> nodes;
    std::map<ValueId, ValueId> replaced;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      Node node = graph_.nodes[i];
      visit_value_ids(node, [&](ValueId& id) {
        if (const auto newer = replaced.find(id); newer != replaced.end()) id = newer->second;
      });
      nodes.push_back(std::move(node));
      const auto layer = std::find_if(layers.begin(), layers.end(),
                                      [&](const LinearLayer& one) { return one.node == i; });
      if (layer == layers.end() || !weights.contains(layer->weight)) continue;
      LinearLayer now = *layer;
      if (const auto newer = replaced.find(now.x); newer != replaced.end()) now.x = newer->second;
      replaced[layer->y] = add_adapter(now, weights.at(layer->weight), nodes);
    }
    for (ValueId& id : graph_.outputs) {
      if (const auto newer = replaced.find(id); newer != replaced.end()) id = newer->second;
    }
    graph_.nodes = std::move(nodes);
    piece_.inputs = graph_.inputs;
    piece_.interpreter = std::make_shared<Interpreter>(std::make_shared<const Graph>(graph_));
    return piece_;
  }

 private:
  ValueId add_value(const std::string& name, std::optional<at::ScalarType> dtype,
                    std::vector<Extent> sizes) {
    graph_.values.push_back({.name = name, .dtype = dtype, .sizes = std::move(sizes)});
    return static_cast<ValueId>(graph_.values.size() - 1);
  }

  ValueId matrix(const std::string& name, const LinearLayer& layer, int64_t rows, int64_t columns) {
    const auto [known, is_new] = matrices_.try_emplace(name, kNoValue);
    if (is_new) {
      const auto dtype = graph_.values[static_cast<size_t>(layer.weight)].dtype;
      known->second = add_value(name, dtype, {{.number = rows}, {.number = columns}});
      graph_.inputs.push_back({InputKind::kParameter, name, known->second});
      piece_.is_written.push_back(0);
    }
    return known->second;
  }

  // A node beside the layer's, in its module and modes.
  ValueId add_node(const Node& beside, const std::string& suffix, const std::string& target,
                   std::vector<NamedArgument> arguments, std::vector<Extent> sizes,
                   std::vector<Node>& nodes) {
    Node node = beside;
    node.name += suffix;
    node.target = target;
    node.arguments = std::move(arguments);
    const auto dtype = graph_.values[static_cast<size_t>(beside.outputs[0].values[0])].dtype;
    const ValueId made = add_value(node.name, dtype, std::move(sizes));
    node.outputs = {Output{{made}}};
    nodes.push_back(std::move(node));
    return made;
  }

  // Returns the sum, which takes the place of the layer's result.
  ValueId add_adapter(const LinearLayer& layer, const AdaptedWeight& weight,
                      std::vector<Node>& nodes) {
    const Node beside = nodes.back();
    const auto sizes_of = [&](ValueId id) { return graph_.values[static_cast<size_t>(id)].sizes; };
    ValueId x = layer.x;
    if (training_ && rule_.dropout > 0) {
      x = add_node(beside, ".lora_dropout", "aten.dropout.default",
                   {{"input", reference(x)}, {"p", Item(rule_.dropout)}, {"train", Item(true)}},
                   sizes_of(x), nodes);
    }
    std::vector<Extent> low = sizes_of(x);
    if (!low.empty()) low.back() = {.number = rule_.r};
    const auto product = [&](ValueId of, ValueId with) -> std::vector<NamedArgument> {
      return {{"x", reference(of)}, {"weight", reference(with)}, {"bias", Item()}};
    };
    const ValueId a = matrix(weight.a, layer, rule_.r, weight.in),
                  b = matrix(weight.b, layer, weight.out, rule_.r);
    const ValueId lowered =
        add_node(beside, ".lora_a", "tessera.linear", product(x, a), low, nodes);
    const ValueId lifted = add_node(beside, ".lora_b", "tessera.linear", product(lowered, b),
                                    sizes_of(layer.y), nodes);
    return add_node(beside, ".lora", "aten.add.Tensor",
                    {{"self", reference(layer.y)},
                     {"other", reference(lifted)},
                     {"alpha", Item(rule_.scale())}},
                    sizes_of(layer.y), nodes);
  }

  Graph graph_;
  BlockPiece piece_;
  const LoraRule& rule_;
  bool training_;
  std::map<std::string, ValueId> matrices_;
};

class BlockAdapter {
 public:
  BlockAdapter(const BlockParts& block, const LoraRule& rule)
      : block_(block), adapted_(std::make_shared<BlockParts>(block)), rule_(rule) {}

  std::shared_ptr<const BlockParts> adapt() {
    for (BlockVariant& variant : adapted_->variants) {
      const bool changed = adapt(variant.main, variant.training, gives_scores());
      if (variant.auxiliary) adapt(*variant.auxiliary, variant.training, false);
      if (!changed) continue;
      variant.ends_in_product = false;
      variant.joined.reset();
      variant.product.reset();
      // Chunks of rows would all drop the same elements.
      if (rule_.dropout > 0 && variant.training) variant.acts_on_rows = false;
    }
    return adapted_;
  }

 private:
  bool gives_scores() const {
    return block_.loss == LossKind::kCausal || block_.loss == LossKind::kClassification;
  }

  // The module that the rule targets; empty: it does not.
  std::string module_of(const LinearLayer& layer, const std::string& used, bool is_head) const {
    const BlockParameter& parameter = block_.parameter(used);
    const std::string name = hub_name(parameter.entry);
    if (!name.ends_with(kWeight) || !LoraRule::matches(parameter.name, "weight")) return "";
    if (rule_.all_linear() && (!layer.by_module || is_head)) return "";
    const std::string module = name.substr(0, name.size() - kWeight.size());
    return rule_.targets(module) ? module : "";
  }

  bool adapt(BlockPiece& piece, bool training, bool scores) {
    PieceAdapter adapter(piece, rule_, training);
    const Graph& graph = adapter.graph();
    const std::vector<LinearLayer> layers = linear_layers(graph);
    std::set<size_t> heads;
    if (scores) {
      for (const size_t i : last_linear_layers(graph, layers, graph.outputs[0])) heads.insert(i);
    }
    std::map<ValueId, std::string> names;
    for (const GraphInput& input : graph.inputs) names[input.value] = input.name;
    std::map<ValueId, AdaptedWeight> weights;
    for (size_t i = 0; i < layers.size(); ++i) {
      const std::string& used = names.at(layers[i].weight);
      const std::string module = module_of(layers[i], used, heads.contains(i));
      if (!module.empty()) weights[layers[i].weight] = add_matrices(layers[i], used, module);
    }
    if (weights.empty()) return false;
    piece = adapter.adapted(layers, weights);
    return true;
  }

  AdaptedWeight add_matrices(const LinearLayer& layer, const std::string& used,
                             const std::string& module) {
    const BlockParameter& weight = block_.parameter(used);
    const AdaptedWeight adapted{.a = adapter_name(weight.entry.name, kLoraA),
                                .b = adapter_name(weight.entry.name, kLoraB),
                                .in = layer.in,
                                .out = layer.out};
    const std::string own = weight.name;
    add_parameter(adapted.a, adapter_name(own, kLoraA), {rule_.r, layer.in}, module);
    add_parameter(adapted.b, adapter_name(own, kLoraB), {layer.out, rule_.r}, module);
    return adapted;
  }

  void add_parameter(const std::string& name, const std::string& own, std::vector<int64_t> shape,
                     const std::string& module) {
    if (!adapted_->owner_of.try_emplace(name, name).second) return;
    BlockParameter parameter{.entry = {.name = name, .shape = std::move(shape)}, .name = own};
    parameter.adapts = module;
    adapted_->parameters.push_back(std::move(parameter));
  }

  const BlockParts& block_;
  std::shared_ptr<BlockParts> adapted_;
  const LoraRule& rule_;
};

}  // namespace

std::shared_ptr<const BlockParts> with_adapters(const BlockParts& block, const LoraRule& rule) {
  return BlockAdapter(block, rule).adapt();
}

std::vector<std::string> default_targets(const std::string& model_type) {
  static const std::map<std::string, std::vector<std::string>> targets = {
      {"bloom", {"query_key_value"}},
      {"falcon", {"query_key_value"}},
      {"gpt2", {"c_attn"}},
      {"gpt_bigcode", {"c_attn"}},
      {"gpt_neox", {"query_key_value"}},
      {"mpt", {"Wqkv"}},
      {"nemotron_h", {"q_proj", "k_proj", "v_proj", "o_proj"}},
      {"phi", {"q_proj", "v_proj", "fc1", "fc2"}}};
  static const std::set<std::string> query_and_value = {
      "gemma",   "gemma2",  "gemma3_text", "gpt_neo", "gptj",  "llama",   "llama4",
      "mistral", "mixtral", "opt",         "qwen2",   "qwen3", "stablelm"};
  if (query_and_value.contains(model_type)) return {"q_proj", "v_proj"};
  const auto found = targets.find(model_type);
  return found == targets.end() ? std::vector<std::string>() : found->second;
}

}  // namespace tessera::program
