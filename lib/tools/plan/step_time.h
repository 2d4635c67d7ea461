// SPDX-License-Identifier: MIT
#pragma once
// Predicted seconds of a planned step on a card.
#include "lib/tools/plan/plan.h"

namespace tessera::programs {

// Time of a rank with this memory plan; config has the stages and recomputed blocks. run: options,
// mesh and messages must be set.
StepTime step_time(const Prepared& model, const RunPlan& run, const PlannedHosts& hosts,
                   const ParallelConfig& config, const MemoryPlan& memory);

}  // namespace tessera::programs
