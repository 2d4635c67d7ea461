// SPDX-License-Identifier: MIT
#pragma once
// Ranks, and runs, that must say the same.
#include <string>

#include "lib/testing/fuzz_run.h"

namespace tessera::testing {

// Everything that all ranks report alike. Throws Difference.
void require_ranks_agree(const RunRecord& run);

// The quiet run of the same layout: the same bits in losses, norms and final parameters. What
// differs first, or nothing.
std::string compare_runs(const RunRecord& quiet, const RunRecord& visited);

}  // namespace tessera::testing
