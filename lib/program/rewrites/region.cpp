// SPDX-License-Identifier: MIT
#include "lib/program/rewrites/region.h"

#include <algorithm>
#include <map>
#include <set>

#include "tessera/core/error.h"

namespace tessera::program {
namespace {

class RegionMaker {
 public:
  RegionMaker(const Graph& graph, const GraphFacts& facts) : graph_(graph), facts_(facts) {}

  std::optional<Graph> make(const std::vector<ValueId>& inputs, ValueId output) {
    region_.file = graph_.file;
    for (size_t i = 0; i < inputs.size(); ++i) {
      region_.inputs.push_back({InputKind::kHidden, concat(i), number_of(inputs[i])});
      given_.insert(inputs[i]);
    }
    if (!find_nodes(output)) return std::nullopt;
    for (const GraphInput& input : graph_.inputs) {
      if (!reached_.contains(input.value)) continue;
      region_.inputs.push_back({input.kind, input.name, number_of(input.value)});
    }
    for (const size_t node : nodes_) add_node(graph_.nodes[node]);
    region_.outputs.push_back(number_of(output));
    return std::move(region_);
  }

 private:
  bool find_nodes(ValueId output) {
    std::vector<ValueId> left = {output};
    while (!left.empty()) {
      const ValueId id = left.back();
      left.pop_back();
      if (given_.contains(id)) continue;
      if (facts_.is_written(id)) return false;
      const size_t node = facts_.maker(id);
      if (node == kNoNode) reached_.insert(id);
      if (node == kNoNode || !nodes_.insert(node).second) continue;
      const Region plain;
      if (!facts_.is_free(node) && !(graph_.nodes[node].region == plain)) return false;
      visit_reads(graph_.nodes[node], [&](ValueId read) { left.push_back(read); });
    }
    return true;
  }

  ValueId number_of(ValueId id) {
    const auto [known, added] =
        numbers_.try_emplace(id, static_cast<ValueId>(region_.values.size()));
    if (added) region_.values.push_back(graph_.values[static_cast<size_t>(id)]);
    return known->second;
  }

  void add_node(const Node& node) {
    Node& added = region_.nodes.emplace_back(node);
    visit_value_ids(added, [&](ValueId& id) { id = number_of(id); });
  }

  const Graph& graph_;
  const GraphFacts& facts_;
  Graph region_;
  std::set<ValueId> given_, reached_;
  std::set<size_t> nodes_;
  std::map<ValueId, ValueId> numbers_;
};

}  // namespace

std::optional<Graph> region_between(const Graph& graph, const GraphFacts& facts,
                                    const std::vector<ValueId>& inputs, ValueId output) {
  return RegionMaker(graph, facts).make(inputs, output);
}

Graph in_double(Graph graph) {
  for (Value& value : graph.values) {
    if (value.dtype && at::isFloatingType(*value.dtype)) value.dtype = at::kDouble;
  }
  for (Node& node : graph.nodes) {
    for (NamedArgument& argument : node.arguments) {
      auto* dtype = std::get_if<at::ScalarType>(&argument.value);
      if (dtype != nullptr && at::isFloatingType(*dtype)) *dtype = at::kDouble;
    }
  }
  return graph;
}

}  // namespace tessera::program
