// SPDX-License-Identifier: MIT
#pragma once
// A region of a graph as a graph of its own, which a proof can run.
#include <optional>
#include <vector>

#include "lib/program/graph.h"
#include "lib/program/graph_facts.h"

namespace tessera::program {

// The nodes from these values to the output. The values are inputs of kind kHidden, named by their
// places; parameters, constants, buffers and user's inputs that the nodes read follow them.
// nullopt: a node on the way writes to memory or lies in a region of another mode.
std::optional<Graph> region_between(const Graph& graph, const GraphFacts& facts,
                                    const std::vector<ValueId>& inputs, ValueId output);

// The same graph in fp64: its floating tensors, and the casts in it.
Graph in_double(Graph graph);

}  // namespace tessera::program
