// SPDX-License-Identifier: MIT
#include "lib/program/tensor/cut_graph.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "lib/program/call.h"
#include "lib/program/graph_facts.h"
#include "lib/program/linear_layers.h"
#include "lib/program/rewrites/program_view.h"
#include "lib/program/tensor/cut_shapes.h"
#include "lib/program/tensor/operators.h"
#include "tessera/core/error.h"
#include "tessera/model/lora.h"

namespace tessera::program {
namespace {

using Kind = CutNode::Kind;

class Cutter {
 public:
  Cutter(const Graph& graph, const TensorRules& rules, int ranks,
         const std::function<std::string(const std::string&)>& path_of)
      : graph_(graph), facts_(graph), rules_(rules), path_of_(path_of) {
    cut_.graph = graph;
    cut_.ranks = ranks;
    for (const LinearLayer& layer : linear_layers(graph)) layers_[layer.node] = layer;
    for (const GraphInput& input : graph.inputs) {
      if (input.kind == InputKind::kParameter) parameters_[input.value] = input.name;
    }
  }

  CutGraph cut() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const auto layer = layers_.find(i);
      if (layer != layers_.end()) {
        cut_layer(graph_.nodes[i], layer->second);
      } else {
        cut_node(i);
      }
    }
    for (const ValueId id : graph_.outputs) {
      check(!states_.contains(id), ErrorCode::kInvalidArgument, graph_.file,
            ": tensor axis: the block's result ", value(id).name,
            " is shared by the ranks; no layer with the rule rows joins it");
    }
    return std::move(cut_);
  }

 private:
  const Value& value(ValueId id) const { return cut_.graph.values[static_cast<size_t>(id)]; }

  [[noreturn]] void refuse(const std::string& path, const std::string& reason) const {
    fail(ErrorCode::kInvalidArgument, "tensor axis of ", cut_.ranks, ": ", path, ": ", reason);
  }
  [[noreturn]] void refuse(const Node& node, const std::string& reason) const {
    refuse(concat(node.modules.empty() ? node.name : node.modules.back(), " (", node.target, ")"),
           reason);
  }

  const CutState* state_of(ValueId id) const {
    const auto found = states_.find(id);
    return found == states_.end() ? nullptr : &found->second;
  }

  void add(Node node, Kind kind) { cut_.nodes.push_back({std::move(node), kind}); }

  ValueId new_value(ValueId like, const std::string& suffix) {
    cut_.graph.values.push_back(value(like));
    cut_.graph.values.back().name += suffix;
    return static_cast<ValueId>(cut_.graph.values.size() - 1);
  }

  ValueId add_own(const Node& beside, const char* target, std::vector<NamedArgument> arguments,
                  ValueId like, Kind kind) {
    Node node = beside;
    node.name += concat(".", target, cut_.nodes.size());
    node.target = target;
    node.arguments = std::move(arguments);
    const ValueId made = new_value(like, concat(".", target, cut_.nodes.size()));
    node.outputs = {Output{{made}}};
    add(std::move(node), kind);
    return made;
  }

  // --- Linear layers.

  // "model.layers.0.self_attn.q_proj" and its rule; matrices of adapters follow their layer's.
  std::pair<std::string, PathRule> rule_of(const Node& node, const LinearLayer& layer) const {
    const std::string name = path_of_(parameters_.at(layer.weight));
    for (const std::string_view matrix : {kLoraA, kLoraB}) {
      if (!LoraRule::matches(name, matrix)) continue;
      const std::string path = name.substr(0, name.size() - matrix.size() - 1);
      const PathRule* base = rules_.find(path);
      if (base == nullptr) refuse(path, "no rule matches this path");
      const TensorRule own = matrix == kLoraA ? TensorRule::kRows : base->rule;
      const bool cuts = base->rule == (matrix == kLoraA ? TensorRule::kRows : TensorRule::kColumns);
      const bool head = matrix == kLoraB && base->rule == TensorRule::kVocabulary;
      return {path, cuts ? PathRule{own, matrix == kLoraB ? base->parts : 1}
                         : PathRule{head ? TensorRule::kVocabulary : TensorRule::kWhole}};
    }
    const std::string path = name.substr(0, name.rfind('.'));
    const PathRule* rule = rules_.find(path);
    if (rule == nullptr) {
      refuse(path, concat("no rule matches this path; say columns, rows, vocabulary or whole in a "
                          "file for --program_tensor_rules (node ",
                          node.name, ")"));
    }
    return {path, *rule};
  }

  void place_parameter(ValueId id, const TensorCut& cut, const std::string& path) {
    const auto [known, is_new] = cut_.parameters.try_emplace(parameters_.at(id), cut);
    if (!is_new && (known->second.dim != cut.dim || known->second.parts != cut.parts)) {
      refuse(path, "two layers share its parameter and cut it in other ways");
    }
  }

  void check_divides(const std::string& path, int64_t extent, int parts) const {
    if (extent % (int64_t{parts} * cut_.ranks) == 0) return;
    refuse(path, concat(extent, " columns or rows in ", parts, " parts do not divide by ",
                        cut_.ranks, " ranks"));
  }

  void cut_layer(const Node& node, const LinearLayer& layer) {
    const auto [path, rule] = rule_of(node, layer);
    const CutState* state = state_of(layer.x);
    const bool rows = rule.rule == TensorRule::kRows;
    if (rows && state == nullptr) {
      refuse(path,
             "the rule says rows, but what it takes is whole: no layer before it is cut by "
             "columns");
    }
    if (!rows && state != nullptr) {
      refuse(path, "what it takes is shared by the ranks, so that its rule must be rows");
    }
    switch (rule.rule) {
      case TensorRule::kColumns:
        return cut_columns(node, layer, path, rule.parts);
      case TensorRule::kRows:
        return cut_rows(node, layer, path, *state);
      case TensorRule::kVocabulary:
        return cut_classes(node, layer, path);
      case TensorRule::kWhole:
        return add(node, Kind::kWhole);
    }
  }

  ValueId entered(const Node& beside, ValueId x) {
    const auto [known, is_new] = entered_.try_emplace(x, kNoValue);
    if (is_new) {
      known->second = add_own(beside, kEnterRanks, {{"x", reference(x)}}, x, Kind::kEnter);
      cut_.entered.push_back(x);
    }
    return known->second;
  }

  // The node with other values in place of these.
  static Node with_values(Node node, const std::map<ValueId, ValueId>& others) {
    std::set<ValueId> written;
    visit_writes(node, [&](ValueId id) { written.insert(id); });
    visit_value_ids(node, [&](ValueId& id) {
      const auto other = others.find(id);
      if (other != others.end() && !written.contains(id)) id = other->second;
    });
    return node;
  }

  void cut_bias(const LinearLayer& layer, const TensorCut& cut, const std::string& path) {
    if (layer.bias == kNoValue) return;
    if (!parameters_.contains(layer.bias)) refuse(path, "its bias is no parameter");
    TensorCut own = cut;
    own.dim = 0;
    place_parameter(layer.bias, own, path);
  }

  void cut_columns(const Node& node, const LinearLayer& layer, const std::string& path, int parts) {
    check_divides(path, layer.out, parts);
    const TensorCut cut{.dim = layer.in_out ? 1 : 0, .parts = parts};
    place_parameter(layer.weight, cut, path);
    cut_bias(layer, cut, path);
    add(with_values(node, {{layer.x, entered(node, layer.x)}}), Kind::kLocal);
    states_[layer.y] = {static_cast<int64_t>(value(layer.y).sizes.size()) - 1, parts};
  }

  void cut_rows(const Node& node, const LinearLayer& layer, const std::string& path,
                const CutState& state) {
    const auto last = static_cast<int64_t>(value(layer.x).sizes.size()) - 1;
    if (state.dim != last) refuse(path, "what it takes is shared in another dimension");
    check_divides(path, layer.in, state.parts);
    if (std::exchange(is_heuristic_, false)) cut_.joined.push_back(layer.y);
    place_parameter(layer.weight, {.dim = layer.in_out ? 0 : 1, .parts = state.parts}, path);
    const ValueId part = new_value(layer.y, ".part");
    Node product = without_bias(node, layer, path);
    product.outputs = {Output{{part}}};
    add(std::move(product), Kind::kLocal);
    Node sum = node;
    sum.name += ".sum";
    sum.target = kSumOfRanks;
    sum.arguments = {{"x", reference(part)}};
    if (layer.bias == kNoValue) return add(std::move(sum), Kind::kSum);
    const ValueId whole = new_value(layer.y, ".sum");
    sum.outputs = {Output{{whole}}};
    add(std::move(sum), Kind::kSum);
    Node biased = node;
    biased.name += ".bias";
    biased.target = "aten.add.Tensor";
    biased.arguments = {{"self", reference(whole)}, {"other", reference(layer.bias)}};
    add(std::move(biased), Kind::kWhole);
  }

  Node without_bias(Node node, const LinearLayer& layer, const std::string& path) const {
    if (node.target == "aten.addmm.default") {
      const Node given = node;
      node.target = "aten.mm.default";
      node.arguments = {{"self", reference(value_of(given, "mat1"))},
                        {"mat2", reference(value_of(given, "mat2"))}};
      return node;
    }
    for (NamedArgument& argument : node.arguments) {
      if (argument.name == "bias") argument.value = Item();
    }
    if (layer.in_out && node.target == "aten.linear.default") refuse(path, "its form is not known");
    return node;
  }

  void cut_classes(const Node& node, const LinearLayer& layer, const std::string& path) {
    const TensorCut cut{.dim = layer.in_out ? 1 : 0, .padded = true};
    place_parameter(layer.weight, cut, path);
    cut_bias(layer, cut, path);
    const ValueId part = new_value(layer.y, ".part");
    Node product = with_values(node, {{layer.x, entered(node, layer.x)}});
    product.outputs = {Output{{part}}};
    add(std::move(product), Kind::kLocal);
    Node gather = node;
    gather.name += ".gather";
    gather.target = kGatherColumns;
    gather.arguments = {{"x", reference(part)}, {"columns", Item(layer.out)}};
    add(std::move(gather), Kind::kGather);
  }

  // --- Other operators.

  // A parameter, or a transpose of one, that a linear layer multiplies with: has its cut already.
  void cut_node(size_t place) {
    const Node& node = graph_.nodes[place];
    if (is_weight_view(node) || is_cut_table(node)) return;
    bool local = false;
    visit_reads(node, [&](ValueId id) { local = local || states_.contains(id); });
    if (!local) return add(node, Kind::kWhole);
    visit_writes(node, [&](ValueId id) {
      if (facts_.is_written(id)) refuse(node, "it writes to memory that the ranks share");
    });
    if (draws(graph_, node)) refuse(node, "it draws other numbers on each rank");
    const CutShapes shapes(cut_.graph, states_, cut_.ranks);
    ShapedNode shaped = shapes.shape(node);
    if (!shaped.reason.empty()) refuse(node, shaped.reason);
    is_heuristic_ = true;
    std::map<ValueId, ValueId> others;
    for (const WholeOperand& operand : shaped.whole) {
      others[operand.value] = prepared(node, operand);
    }
    add(with_values(std::move(shaped.node), others), Kind::kLocal);
    visit_writes(node, [&](ValueId id) { states_[id] = shaped.states.at(id); });
  }

  // Transposes of weights run where their layer does.
  bool is_weight_view(const Node& node) {
    for (const auto& [place, layer] : layers_) {
      const Node& product = graph_.nodes[place];
      const ValueId result = result_of(node);
      bool reads = false;
      visit_reads(product, [&](ValueId id) { reads = reads || id == result; });
      if (!reads || result == kNoValue || value_of(node, "self") != layer.weight) continue;
      const TensorRule rule = rule_of(product, layer).second.rule;
      add(node, rule == TensorRule::kWhole ? Kind::kWhole : Kind::kLocal);
      return true;
    }
    return false;
  }

  // A lookup in a table whose rows are shared.
  bool is_cut_table(const Node& node) {
    const bool own = node.target == "tessera.embedding";
    if (!own && node.target != "aten.embedding.default") return false;
    const ValueId table = value_of(node, "weight");
    const auto parameter = parameters_.find(table);
    if (parameter == parameters_.end()) return false;
    const std::string name = path_of_(parameter->second);
    const std::string path = name.substr(0, name.rfind('.'));
    const PathRule* rule = rules_.find(path);
    if (rule == nullptr || rule->rule != TensorRule::kVocabulary) return false;
    place_parameter(table, {.dim = 0, .padded = true}, path);
    const ValueId ids = value_of(node, own ? "ids" : "indices"), result = result_of(node);
    const auto padding =
        static_cast<int64_t>(number_of(node, own ? "padding" : "padding_idx").value_or(-1));
    const ValueId part = add_own(node, kEmbeddingOfPart,
                                 {{"ids", reference(ids)},
                                  {"weight", reference(table)},
                                  {"padding", Item(padding)},
                                  {"vocabulary", Item(extent_of(value(table), 0))},
                                  {"rank", Item(int64_t{0})}},
                                 result, Kind::kPart);
    Node sum = node;
    sum.name += ".sum";
    sum.target = kSumOfRanks;
    sum.arguments = {{"x", reference(part)}};
    add(std::move(sum), Kind::kSum);
    return true;
  }

  bool is_free(ValueId id) const {
    const size_t maker = facts_.maker(id);
    if (maker != kNoNode) return facts_.is_free(maker);
    for (const GraphInput& input : graph_.inputs) {
      if (input.value != id) continue;
      return input.kind != InputKind::kParameter && input.kind != InputKind::kHidden;
    }
    return false;
  }

  // A whole operand of a local node: what the node reads in its place.
  ValueId prepared(const Node& node, const WholeOperand& operand) {
    const auto parameter = parameters_.find(operand.value);
    if (parameter != parameters_.end()) {
      const std::string path = path_of_(parameter->second);
      if (operand.dim < 0) {
        place_parameter(operand.value, {.partial_gradient = true}, path);
      } else {
        check_divides(path, extent_of(value(operand.value), operand.dim), operand.parts);
        place_parameter(operand.value,
                        {.dim = static_cast<int>(operand.dim), .parts = operand.parts}, path);
      }
      return operand.value;
    }
    const bool floating =
        !value(operand.value).dtype || at::isFloatingType(*value(operand.value).dtype);
    ValueId x = operand.value;
    if (!is_free(x) && floating) x = entered(node, x);
    if (operand.dim < 0) return x;
    return add_own(node, kPartOf,
                   {{"x", reference(x)},
                    {"dim", Item(operand.dim)},
                    {"parts", Item(int64_t{operand.parts})},
                    {"ranks", Item(int64_t{cut_.ranks})},
                    {"rank", Item(int64_t{0})},
                    {"padded", Item(false)}},
                   x, Kind::kPart);
  }

  const Graph& graph_;
  const GraphFacts facts_;
  const TensorRules& rules_;
  const std::function<std::string(const std::string&)>& path_of_;
  std::map<size_t, LinearLayer> layers_;
  std::map<ValueId, std::string> parameters_;
  std::map<ValueId, CutState> states_;  // of local values
  std::map<ValueId, ValueId> entered_;
  bool is_heuristic_ = false;  // since ranks joined last
  CutGraph cut_;
};

// A parameter that local and whole nodes read would have a gradient of two kinds.
void check_parameters(const CutGraph& cut) {
  std::map<ValueId, std::string> names;
  for (const GraphInput& input : cut.graph.inputs) {
    if (input.kind == InputKind::kParameter) names[input.value] = input.name;
  }
  for (const CutNode& node : cut.nodes) {
    if (node.kind != Kind::kWhole) continue;
    visit_reads(node.node, [&](ValueId id) {
      const auto name = names.find(id);
      if (name == names.end() || !cut.parameters.contains(name->second)) return;
      fail(ErrorCode::kInvalidArgument, "tensor axis of ", cut.ranks, ": ", name->second,
           " is cut, but ", node.node.name, " (", node.node.target, ") needs all of it");
    });
  }
}

}  // namespace

CutGraph cut_graph(const Graph& graph, const TensorRules& rules, int ranks,
                   const std::function<std::string(const std::string&)>& path_of) {
  CutGraph cut = Cutter(graph, rules, ranks, path_of).cut();
  check_parameters(cut);
  return cut;
}

}  // namespace tessera::program
