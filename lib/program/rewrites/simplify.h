// SPDX-License-Identifier: MIT
#pragma once
// Removal of operators that change nothing.
#include "lib/program/graph.h"

namespace tessera::program {

// Readers of a cast to the tensor's own dtype, of a slice of everything, of a product with 1 and of
// a dropout without effect read its input instead.
void bypass_identities(Graph& graph);

// Operators that write to their input ("aten.clamp_.default") give a new tensor instead, where
// nothing reads that input behind them and nothing shares its memory.
void write_elsewhere(Graph& graph);

// Removes nodes whose results nothing reads. Nodes that write to memory stay, as do the nodes that
// make what they write.
void remove_unread(Graph& graph);
// Removes inputs that are no parameters and that no node reads.
void remove_unread_inputs(Graph& graph);

}  // namespace tessera::program
