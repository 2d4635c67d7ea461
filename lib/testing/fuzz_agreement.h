// SPDX-License-Identifier: MIT
#pragma once
// Equality of ranks, and of runs.
#include <string>

#include "lib/testing/fuzz_run.h"

namespace tessera::testing {

// Checks everything that all ranks report alike. Throws Difference.
void require_ranks_agree(const RunRecord& run);

// Compares with the quiet run of the same layout: losses, norms and final parameters bit for bit.
// Returns the first difference, or "".
std::string compare_runs(const RunRecord& quiet, const RunRecord& visited);

}  // namespace tessera::testing
