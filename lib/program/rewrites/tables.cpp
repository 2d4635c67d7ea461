// SPDX-License-Identifier: MIT
#include "lib/program/rewrites/tables.h"

#include <map>
#include <optional>
#include <utility>

#include "lib/program/graph_facts.h"
#include "lib/program/program_cut.h"
#include "lib/program/rewrites/program_view.h"
#include "lib/program/rewrites/region.h"
#include "lib/program/rewrites/simplify.h"
#include "tessera/core/error.h"

namespace tessera::program {
namespace {

bool attends(const Node& node) {
  return node.target == "tessera.attention" || node.target == "tessera.decoder_layer";
}

Argument& argument_at(Node& node, const char* name) {
  for (NamedArgument& argument : node.arguments) {
    if (argument.name == name) return argument.value;
  }
  fail(ErrorCode::kInternal, node.target, " has no argument ", name);
}

class Taker {
 public:
  Taker(Graph& piece, const std::string& length) : piece_(piece), length_(length), facts_(piece) {}

  std::vector<TakenTable> take() {
    for (Node& node : piece_.nodes) {
      if (!attends(node)) continue;
      if (value_of(node, "cos") != kNoValue && flag_of(node, "by_place")) take_of(node);
    }
    return std::move(taken_);
  }

 private:
  void take_of(Node& node) {
    const bool paired = flag_of(node, "paired");
    const auto cos = input_for(value_of(node, "cos"), paired);
    const auto sin = input_for(value_of(node, "sin"), paired);
    if (!cos || !sin) return;
    argument_at(node, "cos") = reference(*cos);
    argument_at(node, "sin") = reference(*sin);
    argument_at(node, "halved") = Item(true);
  }

  // The input that stands for the table.
  std::optional<ValueId> input_for(ValueId table, bool paired) {
    const auto [known, added] = inputs_.try_emplace({table, paired});
    if (!added) return known->second;
    std::optional<Graph> graph = region_between(piece_, facts_, {}, table);
    if (!graph || !counts_tokens(table) || !takes_rows(*graph)) return std::nullopt;
    const auto id = static_cast<ValueId>(piece_.values.size());
    Value value = piece_.values[static_cast<size_t>(table)];
    value.name += "_taken";
    piece_.values.push_back(value);
    piece_.inputs.push_back({InputKind::kTable, concat(taken_.size()), id});
    taken_.push_back({std::move(*graph), paired});
    known->second = id;
    return id;
  }

  // [..., length, n]
  bool counts_tokens(ValueId table) const {
    const auto& sizes = piece_.values[static_cast<size_t>(table)].sizes;
    return sizes.size() >= 2 && sizes[sizes.size() - 2].expression == length_;
  }

  // User's inputs of the table can be made for any length.
  bool takes_rows(const Graph& graph) const {
    for (const GraphInput& input : graph.inputs) {
      if (input.kind == InputKind::kParameter || input.kind == InputKind::kHidden) return false;
      if (input.kind != InputKind::kUser) continue;
      const auto& sizes = graph.values[static_cast<size_t>(input.value)].sizes;
      if (sizes.size() != 2 || sizes[0].expression.empty() || sizes[1].expression != length_) {
        return false;
      }
    }
    return true;
  }

  Graph& piece_;
  const std::string& length_;
  const GraphFacts facts_;
  std::map<std::pair<ValueId, bool>, std::optional<ValueId>> inputs_;
  std::vector<TakenTable> taken_;
};

}  // namespace

void number_attentions(Graph& piece) {
  int64_t number = 0;
  for (Node& node : piece.nodes) {
    if (attends(node)) argument_at(node, "number") = Item(number++);
  }
}

std::vector<TakenTable> take_tables(Graph& piece, const std::string& length) {
  std::vector<TakenTable> taken = Taker(piece, length).take();
  if (taken.empty()) return taken;
  remove_unread(piece);
  remove_unread_inputs(piece);
  return taken;
}

bool has_cached_form(const Graph& piece) {
  for (const Node& node : piece.nodes) {
    if (!attends(node)) continue;
    if (value_of(node, "cos") != kNoValue && !flag_of(node, "halved")) return false;
    const bool plain = number_of(node, "softcap").value_or(0) == 0;
    if (!plain || value_of(node, "sinks") != kNoValue) return false;
  }
  return true;
}

}  // namespace tessera::program
