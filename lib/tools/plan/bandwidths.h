// SPDX-License-Identifier: MIT
#pragma once
// How fast the links of a plan are.
#include <string>

#include "lib/plan/card.h"

namespace tessera::programs {

// The card with what a file says about its links: tessera-env --json, or bench_collectives
// --benchmark_format=json, of which the fastest collective counts. Throws Error(kDataLoss) for a
// file that is neither.
void read_bandwidths(const std::string& path, Card& card);

}  // namespace tessera::programs
