// SPDX-License-Identifier: MIT
#pragma once
// Makes sizes and factories independent of tensors that parameters enter, so that every block can
// form them from the user's inputs.
#include <vector>

#include "lib/program/graph.h"
#include "lib/program/user_inputs.h"

namespace tessera::program {

// An extent of any tensor that is known to be one of an input is read from that input; new_ones(),
// new_zeros(), new_full() and new_empty() become ones(), zeros(), full() and empty() of the dtype
// that the file says.
void resolve_extents(Graph& graph);

// Extents of the user's inputs that have one name in program.json are one: an export knows them
// apart where one may be 1 and the other not. inputs: in the order of the graph's.
void join_extents(Graph& graph, const std::vector<InputEntry>& inputs);

}  // namespace tessera::program
