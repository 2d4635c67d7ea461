// SPDX-License-Identifier: MIT
#pragma once
// What operators make of tensors of which each rank has a part of one dimension.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/program/graph.h"

namespace tessera::program {

// The dimension that is shared. It consists of equal parts, each of which is shared.
struct CutState {
  int64_t dim = 0;
  int parts = 1;
};

// A tensor that a local node reads and that each rank has whole.
struct WholeOperand {
  ValueId value = kNoValue;
  int64_t dim = -1;  // the rank's part of it is meant; -1: all of it
  int parts = 1;
};

// The node for one rank.
struct ShapedNode {
  Node node;
  std::map<ValueId, CutState> states;  // of what it makes
  std::vector<WholeOperand> whole;
  std::string reason;  // why there is none
};

class CutShapes {
 public:
  // Sizes of the graph's values are those of all ranks.
  CutShapes(const Graph& graph, const std::map<ValueId, CutState>& states, int ranks)
      : graph_(graph), states_(states), ranks_(ranks) {}

  // The node reads a shared tensor.
  ShapedNode shape(const Node& node) const;

 private:
  struct Work;

  const Graph& graph_;
  const std::map<ValueId, CutState>& states_;
  int ranks_;
};

}  // namespace tessera::program
