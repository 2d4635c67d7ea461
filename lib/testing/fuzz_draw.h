// SPDX-License-Identifier: MIT
#pragma once
// Where the fuzzer's cases come from, and how they get smaller.
#include <functional>
#include <vector>

#include "lib/testing/fuzz.h"

namespace tessera::testing {

FuzzCase draw_case(std::mt19937_64& random, const FuzzOptions& options);

// Smaller cases that still fail, until none of the reductions does: greedily, with at most
// `attempts` runs.
FuzzCase shrink_case(const FuzzCase& failing, const FuzzFamily& family,
                     const std::function<bool(const FuzzCase&)>& fails, int attempts);

}  // namespace tessera::testing
