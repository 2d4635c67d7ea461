// SPDX-License-Identifier: MIT
#include "lib/program/tensor/tensor_cutter.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "lib/program/program_cut.h"
#include "lib/program/rewrites/region.h"
#include "lib/program/rewrites/rewrite.h"
#include "lib/program/tensor/cut_graph.h"
#include "tessera/core/error.h"

namespace tessera::program {
namespace {

constexpr int kMostRanks = 16;            // that divisor() looks at
constexpr int64_t kEveryDegree = 720720;  // what 1 to 16 divide

// The piece's graph, with the names of the block's own inputs.
Graph graph_of(const BlockPiece& piece) {
  Graph graph = piece.interpreter->graph();
  graph.inputs = piece.inputs;
  return graph;
}

bool has_own_values(const GraphInput& input) {
  return input.kind == InputKind::kConstant || input.kind == InputKind::kBuffer;
}

std::function<std::string(const std::string&)> paths_of(const BlockParts& block) {
  return [&block](const std::string& used) { return hub_name(block.parameter(used).entry); };
}

// Parameters of several pieces and variants have one cut.
void note_cuts(BlockParts& block, const CutGraph& cut) {
  for (const auto& [used, how] : cut.parameters) block.parameters[block.place_of(used)].cut = how;
}

// Whether the piece is a layer whose parameters are cut as those of a built-in block.
bool stays_whole(const BlockParts& block, const BlockPiece& piece, int ranks) {
  const Graph graph = graph_of(piece);
  return is_one_layer(graph) && shares_layer(graph.nodes[0], ranks, [&](ValueId id) {
           const auto input = std::ranges::find(graph.inputs, id, &GraphInput::value);
           return block.parameter(input->name).cut;
         });
}

bool is_whole_layer(const BlockParts& block) {
  return std::ranges::all_of(block.variants, [](const BlockVariant& variant) {
    return variant.joined && is_one_layer(variant.joined->interpreter->graph());
  });
}

// Whether the loss may be formed of each rank's rows of the head's matrix.
bool shares_vocabulary(const BlockParts& block, const BlockProduct& product) {
  const TensorCut& cut = block.parameter(product.weight).cut;
  return cut.dim == 0 && cut.padded;
}

}  // namespace

void TensorCutter::check_proof(const BlockPiece& piece, const CutGraph& cut, size_t variant,
                               const std::string& block) {
  const std::scoped_lock lock(mutex_);
  const Graph whole = graph_of(piece);
  const bool has_values = std::ranges::any_of(whole.inputs, has_own_values);  // by variant
  const auto [known, is_new] =
      proofs_.try_emplace(concat(cut.ranks, "\n", has_values ? variant : 0, "\n", text_of(whole)));
  if (is_new) {
    const Graph all = graph_of_all(cut);
    const GraphFacts facts(whole), facts_of_all(all);
    for (const ValueId output : cut.joined) {
      auto expected = region_between(whole, facts, cut.entered, output);
      auto actual = region_between(all, facts_of_all, cut.entered, output);
      if (!expected || !actual) {  // it writes to memory: from the block's beginning on
        expected = whole;
        actual = all;
        expected->outputs = actual->outputs = {output};
      }
      const Proof proof = prove(*expected, *actual, inputs_.at(variant),
                                {.standard_normal = true, .one_size = true});
      if (!proof.holds) known->second = proof.reason;
    }
  }
  check(known->second.empty(), ErrorCode::kInvalidArgument, "tensor axis of ", cut.ranks, ": ",
        block, ": shared by the ranks it is another function, so that a rule must be wrong: ",
        known->second);
}

std::shared_ptr<const BlockParts> TensorCutter::cut(const BlockParts& block, int rank, int ranks,
                                                    bool proves) {
  auto shared = std::make_shared<BlockParts>(block);
  const auto path_of = paths_of(block);
  for (size_t i = 0; i < shared->variants.size(); ++i) {
    BlockVariant& variant = shared->variants[i];
    const auto change = [&](BlockPiece& piece) {
      const CutGraph cut = cut_graph(graph_of(piece), rules_, ranks, path_of);
      if (proves && !cut.joined.empty()) check_proof(piece, cut, i, block.name);
      note_cuts(*shared, cut);
      piece.interpreter =
          std::make_shared<Interpreter>(std::make_shared<const Graph>(graph_of_rank(cut, rank)));
    };
    change(variant.main);
    if (variant.auxiliary) change(*variant.auxiliary);
    if (variant.joined && !stays_whole(*shared, *variant.joined, ranks)) variant.joined.reset();
    if (variant.product && !shares_vocabulary(*shared, *variant.product)) variant.product.reset();
    if (variant.product) change(variant.product->before);
    variant.ends_in_product = false;
  }
  if (!is_whole_layer(*shared)) {
    for (BlockParameter& parameter : shared->parameters) parameter.cut.on_all_tokens = true;
  }
  return shared;
}

std::string sequence_problem(const BlockParts& block) {
  if (is_whole_layer(block)) return "";
  for (const BlockVariant& variant : block.variants) {
    const bool takes_one = variant.hidden <= 1, begins = variant.hidden == 0;
    if (!begins && !block.loss) {
      return "it is no whole layer that runs as a built-in one (see --program_report)";
    }
    const bool gives_one = block.loss || variant.main.interpreter->graph().outputs.size() == 1;
    if (!takes_one || !gives_one) return "several tensors cross to the block beside it";
  }
  return "";
}

int64_t TensorCutter::divisor(const std::vector<std::shared_ptr<BlockParts>>& blocks) const {
  int64_t divisor = 1;
  for (int ranks = 2; ranks <= kMostRanks; ++ranks) {
    std::set<const Interpreter*> known;
    try {
      for (const auto& block : blocks) {
        const BlockPiece& piece = block->variants.front().main;
        if (!known.insert(piece.interpreter.get()).second) continue;
        cut_graph(graph_of(piece), rules_, ranks, paths_of(*block));
      }
      divisor = std::lcm(divisor, int64_t{ranks});
    } catch (const Error&) {
      // These ranks cannot share it.
    }
  }
  return divisor == 1 ? kEveryDegree : divisor;
}

}  // namespace tessera::program
