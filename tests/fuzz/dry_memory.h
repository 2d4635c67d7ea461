// SPDX-License-Identifier: MIT
#pragma once
// Compares a rank's memory with its dry run, byte for byte.
#include <string>

#include "lib/testing/fuzz_case.h"
#include "tessera/backends/strategy.h"

namespace tessera::testing {

// For this world rank; empty if they agree.
std::string compare_with_dry_run(const FuzzCase& fuzz_case, const ModelSpec& model, int rank,
                                 const StrategyMemory& memory);

}  // namespace tessera::testing
