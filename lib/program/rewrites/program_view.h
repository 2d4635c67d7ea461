// SPDX-License-Identifier: MIT
#pragma once
// A graph with its facts, as matchers of rewrites read it.
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/program/graph.h"
#include "lib/program/graph_facts.h"
#include "lib/program/rewrites/mask_form.h"

namespace tessera::program {

// A module's call as a region of the graph.
struct ModuleCall {
  std::vector<size_t> nodes;
  std::vector<ValueId> inputs;  // tensors from outside that depend on parameters or hidden state
  std::vector<ValueId> parameters;  // of the module
  std::vector<ValueId> outputs;     // tensors that are read outside
};

class ProgramView {
 public:
  ProgramView(const Graph& graph, const GraphFacts& facts, const ProofInputs& inputs);

  const Graph& graph() const { return graph_; }
  const GraphFacts& facts() const { return facts_; }
  const Value& value(ValueId id) const { return graph_.values[static_cast<size_t>(id)]; }
  // The node that makes the value; null: an input.
  const Node* maker(ValueId id) const;
  bool is_parameter(ValueId id) const { return parameters_.contains(id); }
  bool is_tensor(ValueId id) const { return value(id).kind == ValueKind::kTensor; }
  // No parameter and nothing random enters the value.
  bool is_free(ValueId id) const;
  // The call of the innermost module that the node belongs to.
  const ModuleCall& call_of(size_t node) const { return calls_.at(graph_.nodes[node].call); }
  // The form of what attention adds to its scores, computed once.
  const MaskForm& mask_form(const ScoreBias& bias) const;
  // Whether the table [..., sequence, n], which no parameter enters, has a row for each place that
  // is the same for every row and every number of tokens.
  bool is_by_place(ValueId table) const;

 private:
  void find_ends();

  const Graph& graph_;
  const GraphFacts& facts_;
  std::set<ValueId> parameters_, hidden_;
  std::map<std::string, ModuleCall> calls_;
  const ProofInputs& inputs_;
  mutable std::map<ValueId, MaskForm> masks_;  // by the bias's output: those that were asked for
  mutable std::map<ValueId, bool> tables_;
};

// The argument of this name; null: there is none.
const Argument* argument_of(const Node& node, const std::string& name);
// The value given for the argument; kNoValue: a constant, or nothing.
ValueId value_of(const Node& node, const std::string& name);
// The argument as a number; none: a value, or nothing.
std::optional<double> number_of(const Node& node, const std::string& name);
// Whether the argument is the constant true.
bool flag_of(const Node& node, const std::string& name);
// The value as an argument; None for kNoValue.
Item item_or_none(ValueId id);
// The only value that the node makes; kNoValue: it makes several.
ValueId result_of(const Node& node);
// A constant extent; -1: it is free.
int64_t extent_of(const Value& value, int64_t dim);

}  // namespace tessera::program
