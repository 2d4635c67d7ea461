// SPDX-License-Identifier: MIT
#pragma once
// The seconds that a planned step takes on a card.
#include "lib/tools/plan/plan.h"

namespace tessera::programs {

// Of a rank whose memory is this, with blocks on stages and run again as config has them; run has
// its options, mesh and messages.
StepTime step_time(const Prepared& model, const RunPlan& run, const Place& place,
                   const ParallelConfig& config, const MemoryPlan& memory);

}  // namespace tessera::programs
