// SPDX-License-Identifier: MIT
#pragma once
// Whether a head may run on some of the positions only.
#include "lib/program/graph.h"

namespace tessera::program {

// Whether the piece gives each position of its only hidden input, [batch, sequence, n], its own
// row of the output, [batch, sequence, m], whatever the other positions hold: every operator on the
// way is known to keep to the last dimensions. False where that is not known.
bool acts_on_rows(const Graph& piece);

}  // namespace tessera::program
