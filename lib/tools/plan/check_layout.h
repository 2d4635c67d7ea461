// SPDX-License-Identifier: MIT
#pragma once
// tessera-plan --check.
#include <iosfwd>

#include "lib/tools/plan/plan.h"

namespace tessera::programs {

// Checks the operations of all ranks in the layout. Prints one sentence to `out` if they match,
// else the problems to `err`. Returns the exit code. Throws as plan_run() for options that no run
// accepts.
int check_layout(const Prepared& model, const TrainOptions& options, const PlannedHosts& hosts,
                 std::ostream& out, std::ostream& err);

}  // namespace tessera::programs
