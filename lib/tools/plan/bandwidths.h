// SPDX-License-Identifier: MIT
#pragma once
// Link speeds of a plan, from measurements.
#include <string>

#include "lib/plan/card.h"

namespace tessera::programs {

// Sets the card's link speeds from a file: tessera-env --json, or bench_collectives
// --benchmark_format=json, of which the fastest collective counts. Throws Error(kDataLoss) for
// other files.
void read_bandwidths(const std::string& path, Card& card);

}  // namespace tessera::programs
