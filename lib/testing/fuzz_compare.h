// SPDX-License-Identifier: MIT
#pragma once
// A run beside the oracle.
#include <string>

#include "lib/testing/fuzz_run.h"

namespace tessera::testing {

// What differs first, or nothing. worst: the largest share of a tolerance that was used.
std::string compare_with_oracle(const FuzzCase& fuzz_case, const FuzzModel& model,
                                const FuzzWork& work, const RunRecord& run, double* worst);

// A run and what went on from it before step c.resume, under the layout of `then`
// (resumed_case()), with its work: both beside one oracle; the same bits under the same layout.
std::string compare_resumed(const FuzzCase& c, const FuzzCase& then, const FuzzModel& model,
                            const FuzzWork& work, const FuzzWork& then_work, const RunRecord& run,
                            const RunRecord& resumed, double* worst);

}  // namespace tessera::testing
