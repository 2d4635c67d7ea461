// SPDX-License-Identifier: MIT
#pragma once
// What a rank holds beside what it holds in a dry run, byte by byte.
#include <string>

#include "lib/testing/fuzz_case.h"
#include "tessera/backends/strategy.h"

namespace tessera::testing {

// Of this rank of the world; empty when they agree.
std::string compare_with_dry_run(const FuzzCase& fuzz_case, const ModelSpec& model, int rank,
                                 const StrategyMemory& memory);

}  // namespace tessera::testing
