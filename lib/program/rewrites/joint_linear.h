// SPDX-License-Identifier: MIT
#pragma once
// Linear layers of one input as one product, as decoder layers have queries, keys and values.
#include <optional>
#include <vector>

#include "lib/program/rewrites/apply.h"
#include "lib/program/rewrites/rewrite.h"

namespace tessera::program {

// "tessera.joint_linear": x and the layers' weights, then their biases; a list of results.
const OwnOperator& joint_linear();

// The piece with linear layers that share input and parent module joined, where a proof holds for
// each of their results; nullopt: it has none.
std::optional<Graph> with_joint_products(const Graph& piece, const ProofInputs& inputs,
                                         Proofs& proofs, RewriteReport& report);

// Parameters of a joint product or of a whole layer that are best side by side, in order.
std::vector<ValueId> adjacent_parameters(const Node& node);

}  // namespace tessera::program
