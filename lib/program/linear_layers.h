// SPDX-License-Identifier: MIT
#pragma once
// Linear layers of a graph: products of a tensor with a parameter.
#include <cstdint>
#include <vector>

#include "lib/program/graph.h"

namespace tessera::program {

// y = x W^T + b, or x W + b, in one node.
struct LinearLayer {
  size_t node = 0;
  ValueId x = kNoValue;       // [..., in]
  ValueId weight = kNoValue;  // the parameter, an input of the graph
  ValueId bias = kNoValue;    // kNoValue: none, or added by a later node
  ValueId y = kNoValue;       // [..., out]
  bool in_out = false;        // the weight is [in, out], as GPT-2 has it
  int64_t in = 0, out = 0;
  // Ran by a module of a linear class, whose weight it is: PEFT's all-linear means these.
  bool by_module = false;
};

// Of the graph's nodes, in order: aten.linear and tessera.linear, and addmm, mm and matmul with a
// parameter or its transpose. A matrix that anything else reads, such as an embedding's, has none.
std::vector<LinearLayer> linear_layers(const Graph& graph);

// Those that make the output, without another linear layer behind them: a head's.
std::vector<size_t> last_linear_layers(const Graph& graph, const std::vector<LinearLayer>& layers,
                                       ValueId output);

}  // namespace tessera::program
