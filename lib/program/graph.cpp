// SPDX-License-Identifier: MIT
#include "lib/program/graph.h"

#include "tessera/core/error.h"

namespace tessera::program {

std::string place_of(const Graph& graph, const Node& node) {
  return concat(graph.file, ": node ", node.name, " (", node.target, "): ");
}

}  // namespace tessera::program
