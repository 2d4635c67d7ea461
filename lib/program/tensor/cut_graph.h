// SPDX-License-Identifier: MIT
#pragma once
// A block's graph shared by the ranks of a tensor axis.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lib/program/graph.h"
#include "lib/program/tensor/rules.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera::program {

struct CutNode {
  enum class Kind {
    kWhole,   // equal on every rank
    kLocal,   // of the rank's part
    kEnter,   // whole -> local: itself / the sum of the ranks' gradients
    kSum,     // local -> whole: the sum of the ranks / itself
    kGather,  // local -> whole: columns of all ranks / own columns
    kPart,    // whole -> local: the rank's part of a dimension
  };
  Node node;
  Kind kind = Kind::kWhole;
};

// Numbers of ranks are those of the axis; which of them runs the graph is not settled yet.
struct CutGraph {
  Graph graph;  // of values and inputs; its nodes are those below
  std::vector<CutNode> nodes;
  std::map<std::string, TensorCut> parameters;  // by their names in the program
  int ranks = 1;
  // Values where ranks part, and where they join again behind other operators than products: what
  // lies between was given other extents.
  std::vector<ValueId> entered, joined;
};

// path_of: a parameter's name in the program -> the Hub's path of its module. Throws
// Error(kInvalidArgument) with the path, the node and the reason where the rules do not reach.
CutGraph cut_graph(const Graph& graph, const TensorRules& rules, int ranks,
                   const std::function<std::string(const std::string&)>& path_of);

// What one rank runs; cut parameters are the rank's parts.
Graph graph_of_rank(const CutGraph& cut, int rank);
// All ranks in one graph, on whole parameters, with sums and parts in place of messages.
Graph graph_of_all(const CutGraph& cut);

}  // namespace tessera::program
