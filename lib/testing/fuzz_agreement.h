// SPDX-License-Identifier: MIT
#pragma once
#include "lib/testing/fuzz_run.h"

namespace tessera::testing {

// Everything that all ranks report alike. Throws Difference.
void require_ranks_agree(const RunRecord& run);

}  // namespace tessera::testing
