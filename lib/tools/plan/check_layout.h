// SPDX-License-Identifier: MIT
#pragma once
// tessera-plan --check.
#include <iosfwd>

#include "lib/tools/plan/plan.h"

namespace tessera::programs {

// Checks what all ranks of the layout would call. One sentence to `out` when all is well, else the
// problems to `err`. Returns the exit code. Throws as plan_run() does for options that no run would
// take.
int check_layout(const Prepared& model, const TrainOptions& options, const Place& place,
                 std::ostream& out, std::ostream& err);

}  // namespace tessera::programs
