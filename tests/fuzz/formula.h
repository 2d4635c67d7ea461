// SPDX-License-Identifier: MIT
#pragma once
// What a rank holds beside lib/plan's formula, byte by byte.
#include <string>

#include "lib/testing/fuzz_case.h"
#include "tessera/backends/strategy.h"

namespace tessera::testing {

// Of a rank of this pipeline stage; empty when they agree, and for adapted modules. Moments are
// AdamW's.
std::string compare_with_formula(const FuzzCase& fuzz_case, const ModelSpec& model, int stage,
                                 const StrategyMemory& memory);

}  // namespace tessera::testing
