// SPDX-License-Identifier: MIT
#include <map>
#include <set>
#include <utility>

#include "lib/program/tensor/cut_graph.h"
#include "lib/program/tensor/operators.h"
#include "tessera/core/error.h"

namespace tessera::program {
namespace {

// Operators on a part of a tensor take the rank.
void set_rank(Node& node, size_t rank) {
  if (!node.target.starts_with("tessera.")) return;
  for (NamedArgument& argument : node.arguments) {
    if (argument.name == "rank") argument.value = Item(static_cast<int64_t>(rank));
  }
}

// Writes the graph of all ranks. Whole values keep their numbers; local ones have one a rank.
class AllRanks {
 public:
  explicit AllRanks(const CutGraph& cut) : cut_(cut), all_(cut.graph), own_(size()) {
    all_.nodes.clear();
    for (const GraphInput& input : cut.graph.inputs) {
      const auto found = cut.parameters.find(input.name);
      const bool is_cut = input.kind == InputKind::kParameter && found != cut.parameters.end() &&
                          found->second.dim >= 0;
      if (is_cut) add_parts_of(input, found->second);
    }
  }

  Graph write() {
    for (const CutNode& node : cut_.nodes) add(node);
    return std::move(all_);
  }

 private:
  size_t size() const { return static_cast<size_t>(cut_.ranks); }

  ValueId new_value(ValueId like) {
    all_.values.push_back(all_.values[static_cast<size_t>(like)]);
    all_.values.back().name += concat("@", all_.values.size());
    return static_cast<ValueId>(all_.values.size() - 1);
  }

  ValueId own(size_t rank, ValueId id) const {
    const auto found = own_[rank].find(id);
    return found == own_[rank].end() ? id : found->second;
  }

  Node& add_node(const std::string& name, const std::string& target,
                 std::vector<NamedArgument> arguments, ValueId output) {
    Node node{.name = concat(name, "@", all_.nodes.size()), .target = target};
    node.arguments = std::move(arguments);
    node.outputs = {Output{{output}}};
    return all_.nodes.emplace_back(std::move(node));
  }

  void add_parts_of(const GraphInput& input, const TensorCut& cut) {
    for (size_t rank = 0; rank < size(); ++rank) {
      const ValueId part = new_value(input.value);
      add_node(input.name, kPartOf,
               {{"x", reference(input.value)},
                {"dim", Item(int64_t{cut.dim})},
                {"parts", Item(int64_t{cut.parts})},
                {"ranks", Item(int64_t{cut_.ranks})},
                {"rank", Item(static_cast<int64_t>(rank))},
                {"padded", Item(cut.padded)}},
               part);
      own_[rank][input.value] = part;
    }
  }

  // The node for one rank, on its values.
  void add_local(const CutNode& cut, size_t rank) {
    Node node = cut.node;
    node.name += concat("@", rank);
    for (Output& output : node.outputs) {
      for (ValueId& id : output.values) {
        if (id == kNoValue) continue;
        const ValueId made = new_value(id);
        made_[id] = made;
        id = made;
      }
    }
    const std::set<ValueId> outputs = [&] {
      std::set<ValueId> ids;
      visit_writes(node, [&](ValueId id) { ids.insert(id); });
      return ids;
    }();
    visit_value_ids(node, [&](ValueId& id) {
      if (!outputs.contains(id)) id = own(rank, id);
    });
    set_rank(node, rank);
    for (const auto& [id, made] : made_) own_[rank][id] = made;
    made_.clear();
    all_.nodes.push_back(std::move(node));
  }

  static ValueId first_read(const Node& node) {
    ValueId first = kNoValue;
    visit_reads(node, [&](ValueId id) {
      if (first == kNoValue) first = id;
    });
    return first;
  }

  void add_sum(const Node& node) {
    const ValueId x = first_read(node), result = node.outputs[0].values[0];
    ValueId sum = own(0, x);
    for (size_t rank = 1; rank < size(); ++rank) {
      const ValueId next = rank + 1 == size() ? result : new_value(result);
      add_node(node.name, "aten.add.Tensor",
               {{"self", reference(sum)}, {"other", reference(own(rank, x))}}, next);
      sum = next;
    }
  }

  void add_gather(const Node& node) {
    const ValueId x = first_read(node), result = node.outputs[0].values[0];
    std::vector<Item> parts;
    for (size_t rank = 0; rank < size(); ++rank) parts.push_back(reference(own(rank, x)));
    const ValueId joined = new_value(result);
    add_node(node.name, "aten.cat.default", {{"tensors", parts}, {"dim", Item(int64_t{-1})}},
             joined);
    add_node(node.name, "aten.slice.Tensor",
             {{"self", reference(joined)},
              {"dim", Item(int64_t{-1})},
              {"start", Item(int64_t{0})},
              {"end", node.arguments[1].value}},
             result);
  }

  void add(const CutNode& cut) {
    switch (cut.kind) {
      case CutNode::Kind::kWhole:
        all_.nodes.push_back(cut.node);
        return;
      case CutNode::Kind::kEnter:
        for (auto& values : own_) {
          values[cut.node.outputs[0].values[0]] = first_read(cut.node);
        }
        return;
      case CutNode::Kind::kSum:
        return add_sum(cut.node);
      case CutNode::Kind::kGather:
        return add_gather(cut.node);
      case CutNode::Kind::kLocal:
      case CutNode::Kind::kPart:
        for (size_t rank = 0; rank < size(); ++rank) add_local(cut, rank);
    }
  }

  const CutGraph& cut_;
  Graph all_;
  std::vector<std::map<ValueId, ValueId>> own_;  // by rank: a local value's number there
  std::map<ValueId, ValueId> made_;
};

}  // namespace

Graph graph_of_rank(const CutGraph& cut, int rank) {
  Graph graph = cut.graph;
  graph.nodes.clear();
  for (const CutNode& node : cut.nodes) {
    graph.nodes.push_back(node.node);
    const bool local = node.kind == CutNode::Kind::kPart || node.kind == CutNode::Kind::kLocal;
    if (local) set_rank(graph.nodes.back(), static_cast<size_t>(rank));
  }
  return graph;
}

Graph graph_of_all(const CutGraph& cut) { return AllRanks(cut).write(); }

}  // namespace tessera::program
