#pragma once
// A run beside the oracle.
#include <string>

#include "lib/testing/fuzz_run.h"

namespace tessera::testing {

// What differs first, or nothing. worst: the largest share of a tolerance that was used.
std::string compare_with_oracle(const FuzzCase& fuzz_case, const FuzzModel& model,
                                const FuzzWork& work, const RunRecord& run, double* worst);

// The quiet run of the same layout: the same bits in losses, norms and final parameters.
std::string compare_runs(const RunRecord& quiet, const RunRecord& visited);

}  // namespace tessera::testing
