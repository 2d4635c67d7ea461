// SPDX-License-Identifier: MIT
#pragma once
// Replacement of a region of the graph by one of tessera's operators.
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/program/own_operator.h"
#include "lib/program/rewrites/program_view.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera::program {

struct SmallExtent {
  ValueId value = kNoValue;
  int64_t dim = 0, extent = 0;
};

// One form of the operator that may compute the region's output.
struct Candidate {
  ValueId output = kNoValue;             // what the region ends in
  std::vector<NamedArgument> arguments;  // of the operator, in order
  ProofOptions proof = {};
  // Constant extents that no operator of the region depends on, with small ones to prove it with.
  std::vector<SmallExtent> small = {};
};

// Forms to try, in order; none: why the region is not replaced.
struct Proposal {
  std::vector<Candidate> candidates;
  std::string reason;
};

// A row of the table: matcher and operator. A candidate is kept only with its proof (proof.h).
struct Rewrite {
  std::string_view name;  // in reports: "rms norm"
  OwnOperator own;
  // Regions end in this node, the anchor; nullopt: none does.
  std::optional<Proposal> (*propose)(const ProgramView& view, size_t anchor);
};

// All of operators. Of several that propose for an anchor the first with a proof counts.
const std::vector<Rewrite>& rewrites();
// Those of whole layers, whose regions end in operators of rewrites().
const std::vector<Rewrite>& layer_rewrites();

// Null: there is no such operator. target: "tessera.rms_norm".
const OwnOperator* find_own(std::string_view target);

// Rows of the table.
Rewrite rms_norm_rewrite();
Rewrite layer_norm_rewrite();
Rewrite gated_silu_rewrite();
Rewrite gelu_tanh_rewrite();
Rewrite gelu_rewrite();
Rewrite linear_rewrite();
Rewrite attention_rewrite();
Rewrite embedding_rewrite();
Rewrite experts_rewrite();
Rewrite decoder_layer_rewrite();

// Parameters of a "tessera.decoder_layer", products of the same input side by side.
std::vector<ValueId> layer_parameters(const Node& layer);
// Whether the graph is a "tessera.decoder_layer" alone.
bool is_one_layer(const Graph& graph);
// Whether so many ranks share the layer's heads and parameters as those of a built-in block.
bool shares_layer(const Node& layer, int ranks,
                  const std::function<TensorCut(ValueId parameter)>& cut_of);

}  // namespace tessera::program
