// SPDX-License-Identifier: MIT
#include <bit>
#include <cstdint>
#include <string>

#include "lib/program/program_cut.h"
#include "tessera/core/error.h"

namespace tessera::program {
namespace {

struct ItemText {
  std::string operator()(std::monostate) const { return "none"; }
  std::string operator()(const ValueRef& value) const { return concat("%", value.id); }
  std::string operator()(int64_t value) const { return concat(value); }
  std::string operator()(double value) const {
    // Every bit counts.
    return concat("f", std::bit_cast<uint64_t>(value));
  }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
};

struct ArgumentText {
  std::string operator()(const Item& item) const { return std::visit(ItemText(), item); }
  std::string operator()(const std::vector<Item>& items) const {
    std::string text = "[";
    for (const Item& item : items) text += std::visit(ItemText(), item) + ",";
    return text + "]";
  }
  std::string operator()(const std::string& value) const {
    return concat("\"", value.size(), value);
  }
  std::string operator()(at::ScalarType value) const {
    return concat("dtype", static_cast<int>(value));
  }
  std::string operator()(at::MemoryFormat value) const {
    return concat("format", static_cast<int>(value));
  }
  std::string operator()(at::Layout value) const {
    return concat("layout", static_cast<int>(value));
  }
  std::string operator()(const RankDevice&) const { return "device"; }
};

std::string text_of_value(const Value& value) {
  std::string text = value.dtype ? concat(static_cast<int>(*value.dtype)) : "?";
  for (const Extent& extent : value.sizes) {
    text += "," + (extent.expression.empty() ? concat(extent.number) : extent.expression);
  }
  return text;
}

// Names of the others are those of the layer.
bool is_named(InputKind kind) {
  return kind == InputKind::kUser || kind == InputKind::kHidden || kind == InputKind::kTable;
}

std::string text_of_node(const Node& node) {
  std::string text = node.target + "(";
  for (const NamedArgument& argument : node.arguments) {
    text += argument.name + "=" + std::visit(ArgumentText(), argument.value) + ";";
  }
  text += ")";
  for (const Output& output : node.outputs) {
    text += output.is_list ? "*" : "-";
    for (const ValueId id : output.values) text += concat("%", id, " ");
  }
  return text + concat(node.region.no_grad, node.region.autocast,
                       static_cast<int>(node.region.autocast_dtype), "\n");
}

}  // namespace

std::string text_of(const Graph& graph) {
  std::string text;
  for (const GraphInput& input : graph.inputs) {
    text += concat(static_cast<int>(input.kind), "%", input.value, ":",
                   text_of_value(graph.values[static_cast<size_t>(input.value)]),
                   is_named(input.kind) ? input.name : std::string(), "\n");
  }
  for (const Node& node : graph.nodes) text += text_of_node(node);
  for (const ValueId id : graph.outputs) text += concat("%", id, " ");
  return text;
}

}  // namespace tessera::program
