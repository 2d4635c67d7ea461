// SPDX-License-Identifier: MIT
#pragma once
// Reads what torch.export writes of a program (models/model.json of a .pt2 archive).
#include <string>

#include "lib/program/graph.h"
#include "tessera/core/json.h"

namespace tessera::program {

// The format is that of torch/csrc/utils/generated_serialization_types.h, in its major version 8.
// Regions of wrap_with_set_grad_enabled and wrap_with_autocast become part of the graph
// (Node::region); checks of a tensor's metadata are left out. The file may come from a stranger:
// throws Error(kDataLoss), which names file, node and operator, for
//   another version of the format or of the operators;
//   an operator, a higher-order region or a kind of argument that is not among those known to be
//   safe;
//   a value that is used before it is made, or made twice;
//   more nodes, values or list members than any model has.
Graph read_graph(const Json& json);
Graph read_graph_file(const std::string& path);

}  // namespace tessera::program
