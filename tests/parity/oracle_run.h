// SPDX-License-Identifier: MIT
#pragma once
// The parity table's reference, lib/testing/oracle.h: a plain trainer without strategies, stores
// and operations of the library.
#include <string>

#include "lib/testing/fuzz_run.h"
#include "tests/parity/parity.h"

namespace tessera::testing {

// Reference of fp32 rows: the whole global batch at once, the model in fp64 on weights rounded to
// fp32, and gradients, norms, clipping and AdamW in fp64. Runs the model's own blocks, which must
// be plain LibTorch, unless the work has a forward.
RankRecord oracle_run(const ParityWork& work);

// Compares a 16-bit row with run_parity()'s visits. The oracle adopts checked parameters and
// gradients after each step. So errors do not accumulate and are bounded by one step's roundings
// (lib/testing/fuzz_tolerances.h). Empty, or the first value beyond that bound.
std::string oracle_difference(const ParityRow& row, const ParityWork& work, const RunRecord& run);

}  // namespace tessera::testing
