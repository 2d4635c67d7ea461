// SPDX-License-Identifier: MIT
#pragma once
// Cuts a graph into the pieces that blocks run: what comes before the repeated layers, each layer,
// and what comes behind them.
#include <string>
#include <vector>

#include "lib/program/graph.h"
#include "lib/program/graph_facts.h"

namespace tessera::program {

// The nodes that are not free (GraphFacts), in segments. Free nodes belong to no segment: each
// piece recomputes them.
struct Segments {
  std::vector<std::string> names;  // "embedding", "model.layers.0", ..., "head"
  std::vector<size_t> of_node;     // kNoNode: free
};

// layers: module paths whose numbered children are the layers. Nodes between two layers belong to
// the later one. Interleaved layers are one segment.
Segments find_segments(const Graph& graph, const GraphFacts& facts,
                       const std::vector<std::string>& layers);

// Reason against a cut behind each segment but the last; empty: none. Only floating tensors may
// cross, written memory must not be shared across, and a changing buffer belongs to one piece.
std::vector<std::string> obstacles(const Graph& graph, const GraphFacts& facts,
                                   const Segments& segments);

// Outputs of the piece that ends with this segment: the tensors that cross, in the order of their
// making, or the graph's outputs.
std::vector<ValueId> outputs_of(const Graph& graph, const GraphFacts& facts,
                                const Segments& segments, size_t last);

// The piece of the segments [first, last] that gives these of outputs_of(last). Its hidden inputs
// are those of outputs_of(first - 1) that it reads; their names are their places there. Values are
// numbered in the order of the piece.
Graph piece_of(const Graph& graph, const GraphFacts& facts, const Segments& segments, size_t first,
               size_t last, const std::vector<ValueId>& outputs);

// Equal for graphs that compute the same from their inputs, whatever their values, parameters,
// buffers and constants are called.
std::string text_of(const Graph& graph);

}  // namespace tessera::program
