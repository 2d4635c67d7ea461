// SPDX-License-Identifier: MIT
#pragma once
// Makes sizes and factories independent of tensors that parameters enter, so that every block can
// form them from the user's inputs.
#include "lib/program/graph.h"

namespace tessera::program {

// An extent of any tensor that is known to be one of an input is read from that input; new_ones(),
// new_zeros(), new_full() and new_empty() become ones(), zeros(), full() and empty() of the dtype
// that the file says.
void resolve_extents(Graph& graph);

}  // namespace tessera::program
