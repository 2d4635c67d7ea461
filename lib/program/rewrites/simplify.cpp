// SPDX-License-Identifier: MIT
#include "lib/program/rewrites/simplify.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "lib/program/call.h"
#include "lib/program/graph_facts.h"
#include "lib/program/rewrites/program_view.h"

namespace tessera::program {
namespace {

const Value& value_at(const Graph& graph, ValueId id) {
  return graph.values[static_cast<size_t>(id)];
}

bool is_none_or_absent(const Node& node, const char* name) {
  const Argument* given = argument_of(node, name);
  if (given == nullptr) return true;
  const auto* item = std::get_if<Item>(given);
  return item != nullptr && std::holds_alternative<std::monostate>(*item);
}

bool keeps_dtype(const Graph& graph, const Node& node) {
  const Value &from = value_at(graph, value_of(node, "self")),
              &to = value_at(graph, result_of(node));
  const Argument* copy = argument_of(node, "copy");
  const auto* item = copy == nullptr ? nullptr : std::get_if<Item>(copy);
  const auto* copies = item == nullptr ? nullptr : std::get_if<bool>(item);
  return from.dtype && from.dtype == to.dtype && (copies == nullptr || !*copies) &&
         is_none_or_absent(node, "memory_format");
}

bool slices_everything(const Node& node) {
  constexpr double kEnd = static_cast<double>(std::numeric_limits<int64_t>::max());
  const bool from_first = is_none_or_absent(node, "start") || number_of(node, "start") == 0.0;
  const bool to_last = is_none_or_absent(node, "end") || number_of(node, "end") == kEnd;
  return from_first && to_last && number_of(node, "step").value_or(1) == 1;
}

bool multiplies_with_one(const Graph& graph, const Node& node) {
  const Argument* other = argument_of(node, "other");
  const auto* item = other == nullptr ? nullptr : std::get_if<Item>(other);
  const auto* factor = item == nullptr ? nullptr : std::get_if<double>(item);
  const Value &from = value_at(graph, value_of(node, "self")),
              &to = value_at(graph, result_of(node));
  return factor != nullptr && *factor == 1.0 && from.dtype && from.dtype == to.dtype;
}

// The input that the node gives as it is; kNoValue: it does something.
ValueId identity_of(const Graph& graph, const Node& node) {
  const std::string& target = node.target;
  const ValueId self = value_of(node, target.starts_with("aten.dropout") ? "input" : "self");
  if (self == kNoValue || result_of(node) == kNoValue) return kNoValue;
  if (value_at(graph, self).kind != ValueKind::kTensor) return kNoValue;
  if (is_cast(node)) return keeps_dtype(graph, node) ? self : kNoValue;
  if (target == "aten.slice.Tensor") return slices_everything(node) ? self : kNoValue;
  if (target == "aten.alias.default") return self;
  if (target == "aten.mul.Tensor") return multiplies_with_one(graph, node) ? self : kNoValue;
  if (target == "aten.dropout.default") return draws(graph, node) ? kNoValue : self;
  return kNoValue;
}

// "aten.clamp_.default" -> "aten.clamp.default"; empty: it has no such form.
std::string without_write(const std::string& target) {
  const size_t dot = target.rfind('.');
  if (dot == std::string::npos || dot == 0 || target[dot - 1] != '_') return "";
  const std::string other = target.substr(0, dot - 1) + target.substr(dot);
  return find_operator(other) != nullptr ? other : std::string();
}

// The last node that reads each value, after all of them for the graph's outputs.
std::vector<size_t> last_readers(const Graph& graph) {
  std::vector<size_t> last(graph.values.size(), 0);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    visit_reads(graph.nodes[i], [&](ValueId id) { last[static_cast<size_t>(id)] = i; });
  }
  for (const ValueId id : graph.outputs) last[static_cast<size_t>(id)] = graph.nodes.size();
  return last;
}

// Whether a node before the writer gives another value that shares the tensor's memory. Those
// behind it get theirs from what it writes.
bool is_shared(const Graph& graph, const GraphFacts& facts, ValueId tensor, size_t writer) {
  bool shared = false;
  for (size_t i = 0; i < writer; ++i) {
    visit_writes(graph.nodes[i], [&](ValueId id) {
      shared = shared || (id != tensor && facts.group(id) == facts.group(tensor));
    });
  }
  return shared;
}

// Whether the node alone writes the tensor, which was made for it and which nothing reads behind
// it, and all operands have one dtype; masks of bool aside, which promote nothing.
bool owns_input(const Graph& graph, const GraphFacts& facts, const std::vector<size_t>& last,
                size_t place) {
  const Node& node = graph.nodes[place];
  const ValueId self = value_of(node, "self");
  if (self == kNoValue || result_of(node) == kNoValue) return false;
  const size_t maker = facts.maker(self);
  if (maker == kNoNode || last[static_cast<size_t>(self)] != place) return false;
  if (facts.writers(self) != std::vector<size_t>{place}) return false;
  bool own = !is_shared(graph, facts, self, place);
  visit_reads(graph.nodes[maker],
              [&](ValueId id) { own = own && facts.group(id) != facts.group(self); });
  visit_reads(node, [&](ValueId id) {
    const Value& operand = value_at(graph, id);
    own = own && (operand.kind != ValueKind::kTensor || operand.dtype == at::kBool ||
                  operand.dtype == value_at(graph, self).dtype);
  });
  return own;
}

}  // namespace

void write_elsewhere(Graph& graph) {
  const GraphFacts facts(graph);
  const std::vector<size_t> last = last_readers(graph);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const std::string other = without_write(graph.nodes[i].target);
    if (!other.empty() && owns_input(graph, facts, last, i)) graph.nodes[i].target = other;
  }
}

void bypass_identities(Graph& graph) {
  const GraphFacts facts(graph);
  std::vector<ValueId> stands_for(graph.values.size());
  for (size_t i = 0; i < stands_for.size(); ++i) stands_for[i] = static_cast<ValueId>(i);
  for (Node& node : graph.nodes) {
    const auto replace = [&](ValueId& id) { id = stands_for[static_cast<size_t>(id)]; };
    visit_value_ids(node, replace);
    const bool constant =
        facts.is_free(static_cast<size_t>(&node - graph.nodes.data())) &&
        (node.target == "aten.detach_.default" || node.target == "aten.lift_fresh_copy.default");
    const ValueId input = constant ? value_of(node, "self") : identity_of(graph, node);
    // In-place operators would reach other tensors than before.
    if (input == kNoValue || facts.is_written(input) || facts.is_written(result_of(node))) continue;
    stands_for[static_cast<size_t>(result_of(node))] = input;
  }
  for (ValueId& id : graph.outputs) id = stands_for[static_cast<size_t>(id)];
}

void remove_unread(Graph& graph) {
  const GraphFacts facts(graph);
  std::vector<char> needed(graph.nodes.size(), 0);
  std::vector<size_t> left;
  const auto need = [&](size_t node) {
    if (node != kNoNode && !needed[node]) {
      needed[node] = 1;
      left.push_back(node);
    }
  };
  for (const ValueId id : graph.outputs) need(facts.maker(id));
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (draws(graph, graph.nodes[i])) need(i);  // the numbers of others follow its own
  }
  for (size_t id = 0; id < graph.values.size(); ++id) {
    for (const size_t writer : facts.writers(static_cast<ValueId>(id))) need(writer);
  }
  while (!left.empty()) {
    const size_t node = left.back();
    left.pop_back();
    visit_reads(graph.nodes[node], [&](ValueId id) { need(facts.maker(id)); });
  }
  std::vector<Node> kept;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (needed[i]) kept.push_back(std::move(graph.nodes[i]));
  }
  graph.nodes = std::move(kept);
}

void remove_unread_inputs(Graph& graph) {
  std::vector<char> is_read(graph.values.size(), 0);
  for (const ValueId id : graph.outputs) is_read[static_cast<size_t>(id)] = 1;
  for (const Node& node : graph.nodes) {
    visit_reads(node, [&](ValueId id) { is_read[static_cast<size_t>(id)] = 1; });
  }
  std::erase_if(graph.inputs, [&](const GraphInput& input) {
    return input.kind != InputKind::kParameter && !is_read[static_cast<size_t>(input.value)];
  });
}

}  // namespace tessera::program
