// SPDX-License-Identifier: MIT
#include "lib/program/rewrites/apply.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "lib/program/program_cut.h"
#include "lib/program/rewrites/program_view.h"
#include "lib/program/rewrites/region.h"
#include "lib/program/rewrites/rewrite.h"
#include "lib/program/rewrites/simplify.h"
#include "tessera/core/error.h"

namespace tessera::program {
namespace {

// Values of the graph that the node reads and that no free node makes.
std::vector<ValueId> bound_reads(const ProgramView& view, const Node& node) {
  std::vector<ValueId> reads;
  visit_reads(node, [&](ValueId id) {
    const bool known = std::find(reads.begin(), reads.end(), id) != reads.end();
    if (!known && !view.is_free(id)) reads.push_back(id);
  });
  return reads;
}

class Rewriter {
 public:
  Rewriter(Graph& graph, const std::vector<Rewrite>& table, const ProofInputs& inputs,
           Proofs& proofs, RewriteReport& report)
      : graph_(graph),
        table_(table),
        facts_(graph),
        view_(graph, facts_, inputs),
        inputs_(inputs),
        proofs_(proofs),
        report_(report) {}

  // How many regions were replaced.
  size_t apply() {
    size_t replaced = 0;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) replaced += try_all(i) ? 1 : 0;
    return replaced;
  }

 private:
  bool try_all(size_t anchor) {
    std::optional<RewriteResult> refused;
    for (const Rewrite& rewrite : table_) {
      const std::optional<Proposal> proposal = rewrite.propose(view_, anchor);
      if (!proposal) continue;
      RewriteResult result{.rewrite = std::string(rewrite.name)};
      const Node& node = graph_.nodes[anchor];
      result.module_class = node.module_class;
      result.first = node.modules.empty() ? node.name : node.modules.back();
      result.reason = proposal->reason;
      for (const Candidate& candidate : proposal->candidates) {
        if (try_one(rewrite, candidate, anchor, result)) {
          report_.add(result);
          return true;
        }
      }
      if (!refused || !proposal->candidates.empty()) refused = result;
    }
    if (refused) report_.add(*refused);
    return false;
  }

  // Leaves the operator in the anchor's place if its proof holds.
  bool try_one(const Rewrite& rewrite, const Candidate& candidate, size_t anchor,
               RewriteResult& result) {
    Node own = graph_.nodes[anchor];
    own.target = rewrite.own.target;
    own.arguments = candidate.arguments;
    own.outputs = {Output{{candidate.output}}};
    const std::vector<ValueId> reads = bound_reads(view_, own);
    const auto region_of = [&] {
      std::optional<Graph> graph = region_between(graph_, facts_, reads, candidate.output);
      if (graph) shrink(candidate, *graph);
      return graph;
    };
    const std::optional<Graph> region = region_of();
    std::swap(graph_.nodes[anchor], own);
    const std::optional<Graph> replacement = region_of();
    if (!region || !replacement) {
      result.reason = "it writes to memory, or runs in a mode of its own";
    } else {
      const Proof& proof = proof_of(*region, *replacement, candidate.proof);
      result.replaced = proof.holds;
      result.difference = proof.difference;
      result.reason = proof.reason;
    }
    if (!result.replaced) std::swap(graph_.nodes[anchor], own);
    return result.replaced;
  }

  // Equal layers are proven once.
  const Proof& proof_of(const Graph& region, const Graph& replacement,
                        const ProofOptions& options) {
    const std::string key = text_of(region) + "\n" + text_of(replacement);
    const auto known = proofs_.find(key);
    if (known != proofs_.end()) return known->second;
    return proofs_.emplace(key, prove(region, replacement, inputs_, options)).first->second;
  }

  // Values of a region keep their names.
  void shrink(const Candidate& candidate, Graph& region) const {
    for (const SmallExtent& small : candidate.small) {
      const std::string& name = view_.value(small.value).name;
      for (const GraphInput& input : region.inputs) {
        Value& value = region.values[static_cast<size_t>(input.value)];
        if (value.name != name) continue;
        value.sizes.at(static_cast<size_t>(small.dim)) = Extent{.number = small.extent};
      }
    }
  }

  Graph& graph_;
  const std::vector<Rewrite>& table_;
  const GraphFacts facts_;
  const ProgramView view_;
  const ProofInputs& inputs_;
  Proofs& proofs_;
  RewriteReport& report_;
};

// Heads, or as many keys as there are tokens, which routers' softmax has not.
bool is_of_scores(const Graph& graph, const Node& node) {
  const ValueId result = result_of(node);
  if (result == kNoValue) return false;
  const auto& sizes = graph.values[static_cast<size_t>(result)].sizes;
  return sizes.size() == 4 || (sizes.size() == 3 && !sizes.back().expression.empty());
}

// Attention that is there still, where no region that ends in it was tried.
void report_left_attention(const Graph& graph, RewriteReport& report) {
  const GraphFacts facts(graph);
  const std::vector<RewriteResult> tried = report.results();
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const bool attends = node.target == "aten.scaled_dot_product_attention.default" ||
                         node.target == "aten.softmax.int";
    const bool known = std::any_of(tried.begin(), tried.end(), [&](const RewriteResult& result) {
      return result.rewrite == "attention" && result.module_class == node.module_class;
    });
    if (!attends || facts.is_free(i) || known || !is_of_scores(graph, node)) continue;
    report.add({.rewrite = "attention",
                .module_class = node.module_class,
                .first = node.modules.empty() ? node.name : node.modules.back(),
                .reason = concat("its form is not known (", node.target, ")")});
  }
}

std::string counted(int64_t count, const std::string& what) {
  return concat(count, " ", what, count == 1 ? "" : "s");
}

}  // namespace

void RewriteReport::add(const RewriteResult& result) {
  for (RewriteResult& known : results_) {
    if (known.rewrite != result.rewrite || known.module_class != result.module_class ||
        known.replaced != result.replaced || known.reason != result.reason) {
      continue;
    }
    ++known.regions;
    known.difference = std::max(known.difference, result.difference);
    return;
  }
  results_.push_back(result);
  results_.back().regions = 1;
}

std::vector<std::string> RewriteReport::lines() const {
  std::vector<std::string> lines;
  for (const RewriteResult& result : results_) {
    const std::string where = concat(counted(result.regions, result.rewrite), " (",
                                     result.module_class, ", first ", result.first, ")");
    if (result.replaced) {
      lines.push_back(concat("replaced ", where, ": largest relative difference ",
                             result.difference, " in fp64"));
    } else {
      lines.push_back(concat("not replaced ", where, ": ", result.reason));
    }
  }
  return lines;
}

void apply_rewrites(Graph& graph, const ProofInputs& inputs, RewriteReport& report) {
  write_elsewhere(graph);
  bypass_identities(graph);
  remove_unread(graph);
  Proofs proofs;
  Rewriter(graph, rewrites(), inputs, proofs, report).apply();
  remove_unread(graph);
  report_left_attention(graph, report);
}

std::optional<Graph> with_whole_layers(Graph piece, const ProofInputs& inputs, Proofs& proofs,
                                       RewriteReport& report) {
  if (Rewriter(piece, layer_rewrites(), inputs, proofs, report).apply() == 0) return std::nullopt;
  remove_unread(piece);
  return piece;
}

}  // namespace tessera::program
