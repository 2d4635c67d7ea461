// SPDX-License-Identifier: MIT
#pragma once
// Whether a block may take packed rows.
#include <string>

#include "lib/program/graph.h"

namespace tessera::program {

// Empty: tokens meet in tessera's attention only, which keeps to its rows, and nothing else depends
// on their places. Otherwise the first operator that is not known to do so, or a place that enters.
// piece: of hidden inputs [batch, sequence, ...], or of the user's ids.
std::string why_not_packed(const Graph& piece);

}  // namespace tessera::program
