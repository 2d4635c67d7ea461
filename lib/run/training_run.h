// SPDX-License-Identifier: MIT
#pragma once
// One rank's training run, from the agreement of the ranks to the exported model.
#include "lib/run/run_context.h"

namespace tessera::programs {

// On every rank of a job. Nothing is written before all ranks have agreed on arguments and data and
// hold their part of the model. Returns the exit code: 0, or 130 when Ctrl-C ended it and all is
// written. Throws Error; running out of memory becomes Error(kResourceExhausted) with advice.
// Collective.
int execute(const RunContext& run);

}  // namespace tessera::programs
