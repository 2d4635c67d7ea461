// SPDX-License-Identifier: MIT
#include "lib/program/graph_facts.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "lib/program/call.h"
#include "tessera/core/error.h"

namespace tessera::program {
namespace {

constexpr const char* kDetach = "aten.detach_.default";  // changes what autograd knows, no memory

// The values that are given for a parameter of the operator.
std::vector<ValueId> given_for(const Node& node, const std::string& name) {
  std::vector<ValueId> values;
  for (const NamedArgument& argument : node.arguments) {
    if (argument.name != name) continue;
    visit_values(argument.value, [&](ValueId id) { values.push_back(id); });
  }
  return values;
}

bool is_set(const Node& node, const char* name) {
  for (const NamedArgument& argument : node.arguments) {
    const auto* item = argument.name == name ? std::get_if<Item>(&argument.value) : nullptr;
    if (item == nullptr) continue;
    const bool* flag = std::get_if<bool>(item);
    return flag == nullptr || *flag;
  }
  return false;
}

// Whether the node is a cast to another dtype, whose result has memory of its own.
bool changes_dtype(const Graph& graph, const Node& node) {
  if (!is_cast(node)) return false;
  const auto dtype_of = [&](ValueId id) { return graph.values[static_cast<size_t>(id)].dtype; };
  bool changes = true;
  for (const ValueId self : given_for(node, "self")) {
    visit_writes(node, [&](ValueId id) {
      changes = changes && dtype_of(self) && dtype_of(id) && dtype_of(self) != dtype_of(id);
    });
  }
  return changes;
}

// Values that a node may write, and those whose memory its results may share.
struct Effects {
  std::vector<ValueId> written, shared;
};

Effects effects_of(const Graph& graph, const Node& node) {
  Effects effects;
  const Call call = make_call(graph, node);
  if (!call.handle) return effects;
  const auto add = [](std::vector<ValueId>& to, const std::vector<ValueId>& values) {
    to.insert(to.end(), values.begin(), values.end());
  };
  const c10::FunctionSchema& schema = call.handle->schema();
  for (const c10::Argument& parameter : schema.arguments()) {
    const c10::AliasInfo* alias = parameter.alias_info();
    const std::vector<ValueId> given = given_for(node, parameter.name());
    const bool writes = alias != nullptr && alias->isWrite() && node.target != kDetach;
    if (writes) add(effects.written, given);
    if (alias != nullptr || call.traits->maybe_same) add(effects.shared, given);
  }
  if (call.traits->batch_norm && (is_set(node, "training") || is_set(node, "use_input_stats"))) {
    add(effects.written, given_for(node, "running_mean"));
    add(effects.written, given_for(node, "running_var"));
  }
  const bool results_share =
      call.traits->maybe_same ||
      std::any_of(schema.returns().begin(), schema.returns().end(),
                  [](const c10::Argument& result) { return result.alias_info() != nullptr; });
  if (!results_share || changes_dtype(graph, node)) effects.shared.clear();
  return effects;
}

}  // namespace

bool is_cast(const Node& node) {
  return node.target == "aten.to.dtype" || node.target == "aten.to.dtype_layout" ||
         node.target == "aten.to.device" || node.target == "aten.type_as.default";
}

GraphFacts::GraphFacts(const Graph& graph)
    : makers_(graph.values.size(), kNoNode),
      groups_(graph.values.size()),
      writers_(graph.values.size()),
      needs_(graph.nodes.size()),
      free_(graph.nodes.size(), 1) {
  for (size_t i = 0; i < groups_.size(); ++i) groups_[i] = static_cast<ValueId>(i);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    visit_writes(graph.nodes[i], [&](ValueId id) { makers_[static_cast<size_t>(id)] = i; });
  }
  find_aliases(graph);
  check_parameters(graph);
  find_needs(graph);
  find_free(graph);
}

ValueId GraphFacts::root(ValueId value) {
  while (groups_[static_cast<size_t>(value)] != value) {
    ValueId& above = groups_[static_cast<size_t>(value)];
    above = groups_[static_cast<size_t>(above)];
    value = above;
  }
  return value;
}

void GraphFacts::join(ValueId a, ValueId b) {
  const ValueId first = root(a), second = root(b);
  groups_[static_cast<size_t>(std::max(first, second))] = std::min(first, second);
}

void GraphFacts::find_aliases(const Graph& graph) {
  std::vector<std::pair<size_t, ValueId>> writes;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Effects effects = effects_of(graph, graph.nodes[i]);
    for (const ValueId id : effects.written) writes.emplace_back(i, id);
    for (const ValueId shared : effects.shared) {
      visit_writes(graph.nodes[i], [&](ValueId id) { join(shared, id); });
    }
  }
  for (size_t i = 0; i < groups_.size(); ++i) groups_[i] = root(static_cast<ValueId>(i));
  for (const auto& [node, id] : writes) {
    std::vector<size_t>& of_group = writers_[static_cast<size_t>(group(id))];
    if (of_group.empty() || of_group.back() != node) of_group.push_back(node);
  }
}

void GraphFacts::check_parameters(const Graph& graph) const {
  for (const GraphInput& input : graph.inputs) {
    if (input.kind != InputKind::kParameter || !is_written(input.value)) continue;
    fail(ErrorCode::kDataLoss, place_of(graph, graph.nodes[writers(input.value).front()]),
         "writes to the parameter \"", input.name, "\", which only the optimizer may");
  }
}

void GraphFacts::find_needs(const Graph& graph) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    std::set<size_t> needed;
    visit_reads(graph.nodes[i], [&](ValueId id) {
      if (maker(id) != kNoNode) needed.insert(maker(id));
      // The last one before it; each writer reads what the one before it wrote.
      const std::vector<size_t>& all = writers(id);
      const auto behind = std::lower_bound(all.begin(), all.end(), i);
      if (behind != all.begin()) needed.insert(*std::prev(behind));
    });
    needs_[i].assign(needed.begin(), needed.end());
  }
}

void GraphFacts::find_free(const Graph& graph) {
  std::vector<char> bound(graph.values.size(), 0);  // of a group: something that is not free enters
  const auto bind = [&](ValueId id) { bound[static_cast<size_t>(group(id))] = 1; };
  for (const GraphInput& input : graph.inputs) {
    const bool changes = input.kind == InputKind::kBuffer && is_written(input.value);
    if (input.kind == InputKind::kParameter || input.kind == InputKind::kHidden || changes) {
      bind(input.value);
    }
  }
  for (bool again = true; again;) {
    again = false;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      if (!free_[i]) continue;
      bool is_bound = draws(graph, graph.nodes[i]);
      const auto look = [&](ValueId id) {
        is_bound = is_bound || bound[static_cast<size_t>(group(id))] != 0;
      };
      visit_reads(graph.nodes[i], look);
      visit_writes(graph.nodes[i], look);
      if (!is_bound) continue;
      free_[i] = 0;
      again = true;  // what it writes to may have been made before
      visit_writes(graph.nodes[i], bind);
      for (const NamedArgument& argument : graph.nodes[i].arguments) {
        visit_values(argument.value, [&](ValueId id) {
          const auto& of_group = writers(id);
          if (std::find(of_group.begin(), of_group.end(), i) != of_group.end()) bind(id);
        });
      }
    }
  }
}

}  // namespace tessera::program
