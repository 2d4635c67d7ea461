// SPDX-License-Identifier: MIT
#pragma once
// One rank's training run, from the ranks' agreement to the exported model.
#include "lib/run/run_context.h"

namespace tessera::programs {

// Call on every rank of a job. Writes nothing before all ranks agree on arguments and data and hold
// their part of the model. Returns the exit code: 0, or 130 after Ctrl-C once everything is
// written. Throws Error; out of memory becomes Error(kResourceExhausted) with advice. Collective.
int execute(const RunContext& run);

}  // namespace tessera::programs
