// SPDX-License-Identifier: MIT
#pragma once
// Generation and shrinking of cases.
#include <functional>
#include <vector>

#include "lib/testing/fuzz.h"

namespace tessera::testing {

FuzzCase draw_case(std::mt19937_64& random, const FuzzOptions& options);

// Shrinks greedily while a smaller case still fails, with at most `attempts` runs.
FuzzCase shrink_case(const FuzzCase& failing, const FuzzFamily& family,
                     const std::function<bool(const FuzzCase&)>& fails, int attempts);

}  // namespace tessera::testing
