// SPDX-License-Identifier: MIT
#pragma once
// An exported program as plain data: operators in the order in which they run.
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tessera::program {

using ValueId = int32_t;
constexpr ValueId kNoValue = -1;

enum class ValueKind { kTensor, kInteger, kBool, kNumber };

// An extent: a number, or an expression of the extents of the user's inputs.
struct Extent {
  int64_t number = 0;
  std::string expression;  // empty: the number

  bool operator==(const Extent&) const = default;
};

// Facts of a value that the file states.
struct Value {
  std::string name;
  ValueKind kind = ValueKind::kTensor;
  std::optional<at::ScalarType> dtype;  // of a tensor
  std::vector<Extent> sizes;            // of a tensor
  Extent extent;                        // of an integer
};

struct ValueRef {
  ValueId id = kNoValue;

  bool operator==(const ValueRef&) const = default;
};
struct RankDevice {  // every device of a program is that of the rank
  bool operator==(const RankDevice&) const = default;
};

// None, a value, or a constant.
using Item = std::variant<std::monostate, ValueRef, int64_t, double, bool>;
using Argument = std::variant<Item, std::vector<Item>, std::string, at::ScalarType,
                              at::MemoryFormat, at::Layout, RankDevice>;

inline Item reference(ValueId id) { return Item(ValueRef{id}); }

struct NamedArgument {
  std::string name;  // as the operator's schema calls it; empty for functions of numbers
  Argument value;
};

// A node's result: one value, or the members of a list. kNoValue: unused.
struct Output {
  std::vector<ValueId> values;
  bool is_list = false;
};

// Modes around a node: regions of wrap_with_set_grad_enabled and wrap_with_autocast.
struct Region {
  bool no_grad = false;
  bool autocast = false;
  at::ScalarType autocast_dtype = at::ScalarType::BFloat16;

  bool operator==(const Region&) const = default;
};

struct Node {
  std::string name;    // unique in the graph
  std::string target;  // "aten.add.Tensor", "_operator.mul", "math.ceil", "sym_max"
  std::vector<NamedArgument> arguments;
  std::vector<Output> outputs;
  // Paths of the modules that it runs in, from the outside: "model", "model.layers.0".
  std::vector<std::string> modules;
  std::string call;          // one call of the innermost module: its path, "@1" behind it if again
  std::string module_class;  // of that module, without its package: "LlamaRMSNorm"
  Region region;
};

// kTable: formed once for each length of rows (rewrites/tables.h).
enum class InputKind { kParameter, kBuffer, kConstant, kUser, kHidden, kTable };

struct GraphInput {
  InputKind kind = InputKind::kUser;
  std::string name;  // of the parameter, buffer, constant or input
  ValueId value = kNoValue;
};

struct Graph {
  std::string file;  // for messages
  std::vector<Value> values;
  std::vector<GraphInput> inputs;
  std::vector<Node> nodes;
  std::vector<ValueId> outputs;
};

// Calls visit(id) for every value that the node reads.
template <typename Visit>
void visit_values(const Argument& argument, const Visit& visit) {
  const auto item = [&](const Item& given) {
    if (const auto* value = std::get_if<ValueRef>(&given)) visit(value->id);
  };
  if (const auto* one = std::get_if<Item>(&argument)) item(*one);
  if (const auto* list = std::get_if<std::vector<Item>>(&argument)) {
    for (const Item& member : *list) item(member);
  }
}
template <typename Visit>
void visit_reads(const Node& node, const Visit& visit) {
  for (const NamedArgument& argument : node.arguments) visit_values(argument.value, visit);
}
// Calls visit(id) for every value that the node leaves.
template <typename Visit>
void visit_writes(const Node& node, const Visit& visit) {
  for (const Output& output : node.outputs) {
    for (const ValueId id : output.values) {
      if (id != kNoValue) visit(id);
    }
  }
}
// Calls visit(id) with every value's number in the node, which visit may change.
template <typename Visit>
void visit_value_ids(Node& node, const Visit& visit) {
  const auto item = [&](Item& given) {
    if (auto* value = std::get_if<ValueRef>(&given)) visit(value->id);
  };
  for (NamedArgument& argument : node.arguments) {
    if (auto* one = std::get_if<Item>(&argument.value)) item(*one);
    if (auto* list = std::get_if<std::vector<Item>>(&argument.value)) {
      for (Item& member : *list) item(member);
    }
  }
  for (Output& output : node.outputs) {
    for (ValueId& id : output.values) {
      if (id != kNoValue) visit(id);
    }
  }
}

// "FILE: node NAME (OPERATOR): ", as messages begin.
std::string place_of(const Graph& graph, const Node& node);

}  // namespace tessera::program
