// SPDX-License-Identifier: MIT
#pragma once
// The parity table beside lib/testing/oracle.h: a plain trainer that has no strategy, no store and
// no operation of the library.
#include <string>

#include "lib/testing/fuzz_run.h"
#include "tests/parity/parity.h"

namespace tessera::testing {

// What fp32 rows must reproduce: the whole global batch at once, with the model in fp64 on weights
// rounded to fp32, gradients, norms, clipping and AdamW in fp64. The model's own blocks run unless
// the work has a forward, and must then be plain LibTorch.
RankRecord oracle_run(const ParityWork& work);

// For rows in 16 bits, beside what run_parity() shows with visits. Step by step the oracle takes
// over the parameters and gradients that were found good, so that errors do not accumulate and are
// bounded by the roundings of one step (lib/testing/fuzz_tolerances.h). Empty, or what lies first
// further from the oracle than that.
std::string oracle_difference(const ParityRow& row, const ParityWork& work, const RunRecord& run);

}  // namespace tessera::testing
