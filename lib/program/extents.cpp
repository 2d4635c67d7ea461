// SPDX-License-Identifier: MIT
#include "lib/program/extents.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tessera::program {
namespace {

struct InputExtent {
  ValueId input = kNoValue;
  int64_t dim = 0;
};

std::map<std::string, InputExtent> extents_of_inputs(const Graph& graph) {
  std::map<std::string, InputExtent> extents;
  for (const GraphInput& input : graph.inputs) {
    if (input.kind != InputKind::kUser) continue;
    const auto& sizes = graph.values[static_cast<size_t>(input.value)].sizes;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i].expression.empty()) continue;
      extents.try_emplace(sizes[i].expression, InputExtent{input.value, static_cast<int64_t>(i)});
    }
  }
  return extents;
}

void read_from_input(Graph& graph, Node& node, const std::map<std::string, InputExtent>& extents) {
  if (node.target != "aten.sym_size.int" || node.outputs.size() != 1) return;
  if (node.outputs[0].values.size() != 1) return;
  const ValueId result = node.outputs[0].values[0];
  if (result == kNoValue) return;
  const auto known = extents.find(graph.values[static_cast<size_t>(result)].extent.expression);
  if (known == extents.end()) return;
  node.arguments = {{"self", reference(known->second.input)}, {"dim", Item(known->second.dim)}};
}

bool has_dtype(const Node& node) {
  return std::any_of(node.arguments.begin(), node.arguments.end(), [](const auto& argument) {
    return argument.name == "dtype" && std::holds_alternative<at::ScalarType>(argument.value);
  });
}

void make_factory(const Graph& graph, Node& node) {
  static const std::map<std::string, std::string> factories = {
      {"aten.new_ones.default", "aten.ones.default"},
      {"aten.new_zeros.default", "aten.zeros.default"},
      {"aten.new_full.default", "aten.full.default"},
      {"aten.new_empty.default", "aten.empty.memory_format"}};
  const auto factory = factories.find(node.target);
  if (factory == factories.end() || node.outputs.size() != 1 || node.outputs[0].values.empty())
    return;
  const ValueId result = node.outputs[0].values[0];
  if (result == kNoValue || !graph.values[static_cast<size_t>(result)].dtype) return;
  node.target = factory->second;
  std::erase_if(node.arguments, [](const auto& argument) { return argument.name == "self"; });
  if (has_dtype(node)) return;
  std::erase_if(node.arguments, [](const auto& argument) { return argument.name == "dtype"; });
  node.arguments.push_back({"dtype", *graph.values[static_cast<size_t>(result)].dtype});
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

}  // namespace

void join_extents(Graph& graph, const std::vector<InputEntry>& inputs) {
  std::map<std::string, std::string> first;    // by the name
  std::map<std::string, std::string> renamed;  // expression -> that of the first input
  size_t user = 0;
  for (const GraphInput& input : graph.inputs) {
    if (input.kind != InputKind::kUser || user == inputs.size()) continue;
    const auto& sizes = graph.values[static_cast<size_t>(input.value)].sizes;
    const auto& dims = inputs[user++].dims;
    for (size_t i = 0; i < sizes.size() && i < dims.size(); ++i) {
      const std::string& expression = sizes[i].expression;
      if (expression.empty() || dims[i].name.empty()) continue;
      const auto [known, added] = first.try_emplace(dims[i].name, expression);
      if (!added && known->second != expression) renamed[expression] = known->second;
    }
  }
  if (renamed.empty()) return;
  const auto rename = [&](std::string& expression) {
    for (const auto& [from, to] : renamed) replace_all(expression, from, to);
  };
  for (Value& value : graph.values) {
    rename(value.extent.expression);
    for (Extent& extent : value.sizes) rename(extent.expression);
  }
}

void resolve_extents(Graph& graph) {
  const std::map<std::string, InputExtent> extents = extents_of_inputs(graph);
  for (Node& node : graph.nodes) {
    read_from_input(graph, node, extents);
    make_factory(graph, node);
  }
}

}  // namespace tessera::program
