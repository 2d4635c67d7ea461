// SPDX-License-Identifier: MIT
#pragma once
// Comparison of a run with the oracle.
#include <string>

#include "lib/testing/fuzz_run.h"

namespace tessera::testing {

// Returns the first difference, or "". worst: the largest used share of a tolerance.
std::string compare_with_oracle(const FuzzCase& fuzz_case, const FuzzModel& model,
                                const FuzzWork& work, const RunRecord& run, double* worst);

// Compares a run, and its continuation from step c.resume in the layout `then` (resumed_case()),
// with one oracle. Under the same layout the bits must be equal.
std::string compare_resumed(const FuzzCase& c, const FuzzCase& then, const FuzzModel& model,
                            const FuzzWork& work, const FuzzWork& then_work, const RunRecord& run,
                            const RunRecord& resumed, double* worst);

}  // namespace tessera::testing
