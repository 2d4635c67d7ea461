// SPDX-License-Identifier: MIT
#include "lib/program/costs.h"

#include <algorithm>
#include <set>
#include <string>

namespace tessera::program {
namespace {

const Graph& training_graph(const BlockParts& block) {
  for (const BlockVariant& variant : block.variants) {
    if (variant.training) return variant.main.interpreter->graph();
  }
  return block.variants.front().main.interpreter->graph();
}

// The first integer argument of the block's top-k; 1: there is none.
double chosen_experts(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    if (node.target != "aten.topk.default") continue;
    for (const NamedArgument& argument : node.arguments) {
      const auto* item = std::get_if<Item>(&argument.value);
      const auto* k = item == nullptr ? nullptr : std::get_if<int64_t>(item);
      if (argument.name == "k" && k != nullptr) return static_cast<double>(*k);
    }
  }
  return 1;
}

// Parameters that are looked up, not multiplied with.
std::set<ValueId> tables_of(const Graph& graph) {
  std::set<ValueId> tables, multiplied;
  for (const Node& node : graph.nodes) {
    visit_reads(node, [&](ValueId id) {
      const bool looks_up =
          node.target == "aten.embedding.default" || node.target == "tessera.embedding";
      (looks_up ? tables : multiplied).insert(id);
    });
  }
  for (const ValueId id : multiplied) tables.erase(id);
  return tables;
}

}  // namespace

BlockCost cost_of(const BlockParts& block) {
  BlockCost cost;
  for (const BlockParameter& parameter : block.parameters) {
    int64_t numel = 1;
    for (const int64_t extent : parameter.entry.shape) numel *= extent;
    cost.parameters += numel;
  }
  const Graph& graph = training_graph(block);
  const std::set<ValueId> tables = tables_of(graph);
  for (const GraphInput& input : graph.inputs) {
    const auto& sizes = graph.values[static_cast<size_t>(input.value)].sizes;
    const bool matrix = input.kind == InputKind::kParameter && sizes.size() >= 2;
    if (!matrix || tables.contains(input.value)) continue;
    double numel = 1;
    for (const Extent& extent : sizes) numel *= static_cast<double>(extent.number);
    const auto experts = static_cast<double>(sizes[0].number);
    if (sizes.size() == 3 && experts > 0) numel *= std::min(1.0, chosen_experts(graph) / experts);
    cost.flops_per_token += 6 * numel;
  }
  return cost;
}

double attention_flops(const BlockParts& block) {
  const Graph& graph = training_graph(block);
  double flops = 0;
  for (const Node& node : graph.nodes) {
    const bool own = node.target == "tessera.attention";
    if (!own && node.target != "aten.scaled_dot_product_attention.default") continue;
    visit_writes(node, [&](ValueId id) {
      const auto& sizes = graph.values[static_cast<size_t>(id)].sizes;
      if (own) flops += 6 * static_cast<double>(sizes.back().number);  // [batch, sequence, heads n]
      if (own || sizes.size() != 4) return;  // [batch, heads, sequence, n]
      flops += 6 * static_cast<double>(sizes[1].number) * static_cast<double>(sizes[3].number);
    });
  }
  return flops;
}

}  // namespace tessera::program
