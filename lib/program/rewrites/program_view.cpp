// SPDX-License-Identifier: MIT
#include "lib/program/rewrites/program_view.h"

#include <algorithm>

namespace tessera::program {
namespace {

void add_once(std::vector<ValueId>& values, ValueId id) {
  if (std::find(values.begin(), values.end(), id) == values.end()) values.push_back(id);
}

}  // namespace

ProgramView::ProgramView(const Graph& graph, const GraphFacts& facts, const ProofInputs& inputs)
    : graph_(graph), facts_(facts), inputs_(inputs) {
  for (const GraphInput& input : graph.inputs) {
    if (input.kind == InputKind::kParameter) parameters_.insert(input.value);
    if (input.kind == InputKind::kHidden) hidden_.insert(input.value);
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!graph.nodes[i].call.empty()) calls_[graph.nodes[i].call].nodes.push_back(i);
  }
  find_ends();
}

const Node* ProgramView::maker(ValueId id) const {
  const size_t node = facts_.maker(id);
  return node == kNoNode ? nullptr : &graph_.nodes[node];
}

bool ProgramView::is_free(ValueId id) const {
  const size_t node = facts_.maker(id);
  if (node != kNoNode) return facts_.is_free(node);
  return !is_parameter(id) && !hidden_.contains(id) && !facts_.is_written(id);
}

const MaskForm& ProgramView::mask_form(const ScoreBias& bias) const {
  const auto known = masks_.find(bias.output);
  if (known != masks_.end()) return known->second;
  return masks_.emplace(bias.output, form_of_bias(graph_, facts_, bias, inputs_)).first->second;
}

bool ProgramView::is_by_place(ValueId table) const {
  const auto known = tables_.find(table);
  if (known != tables_.end()) return known->second;
  return tables_.emplace(table, is_table_by_place(graph_, facts_, table, inputs_)).first->second;
}

void ProgramView::find_ends() {
  const auto call_that_makes = [&](ValueId id) {
    const Node* node = maker(id);
    return node == nullptr ? std::string() : node->call;
  };
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    const std::string& here = graph_.nodes[i].call;
    visit_reads(graph_.nodes[i], [&](ValueId id) {
      const std::string there = call_that_makes(id);
      if (there == here && maker(id) != nullptr) return;
      if (!there.empty() && is_tensor(id)) add_once(calls_.at(there).outputs, id);
      if (here.empty()) return;
      if (is_parameter(id)) {
        add_once(calls_.at(here).parameters, id);
      } else if (is_tensor(id) && !is_free(id)) {
        add_once(calls_.at(here).inputs, id);
      }
    });
  }
  for (const ValueId id : graph_.outputs) {
    const std::string there = call_that_makes(id);
    if (!there.empty()) add_once(calls_.at(there).outputs, id);
  }
}

const Argument* argument_of(const Node& node, const std::string& name) {
  for (const NamedArgument& argument : node.arguments) {
    if (argument.name == name) return &argument.value;
  }
  return nullptr;
}

ValueId value_of(const Node& node, const std::string& name) {
  const Argument* given = argument_of(node, name);
  const auto* item = given == nullptr ? nullptr : std::get_if<Item>(given);
  const auto* value = item == nullptr ? nullptr : std::get_if<ValueRef>(item);
  return value == nullptr ? kNoValue : value->id;
}

std::optional<double> number_of(const Node& node, const std::string& name) {
  const Argument* given = argument_of(node, name);
  const auto* item = given == nullptr ? nullptr : std::get_if<Item>(given);
  if (item == nullptr) return std::nullopt;
  if (const auto* whole = std::get_if<int64_t>(item)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(item)) return *real;
  return std::nullopt;
}

bool flag_of(const Node& node, const std::string& name) {
  const Argument* given = argument_of(node, name);
  const auto* item = given == nullptr ? nullptr : std::get_if<Item>(given);
  const auto* value = item == nullptr ? nullptr : std::get_if<bool>(item);
  return value != nullptr && *value;
}

Item item_or_none(ValueId id) { return id == kNoValue ? Item() : reference(id); }

ValueId result_of(const Node& node) {
  const bool one =
      node.outputs.size() == 1 && !node.outputs[0].is_list && node.outputs[0].values.size() == 1;
  return one ? node.outputs[0].values[0] : kNoValue;
}

int64_t extent_of(const Value& value, int64_t dim) {
  const auto rank = static_cast<int64_t>(value.sizes.size());
  const int64_t place = dim < 0 ? dim + rank : dim;
  if (place < 0 || place >= rank) return -1;
  const Extent& extent = value.sizes[static_cast<size_t>(place)];
  return extent.expression.empty() ? extent.number : -1;
}

}  // namespace tessera::program
