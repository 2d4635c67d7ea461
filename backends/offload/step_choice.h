// SPDX-License-Identifier: MIT
#pragma once
// Choice of the location of offloaded updates (OffloadStep::kAuto).
#include "backends/offload/host_share.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/backends/unit_optimizer.h"

namespace tessera {

// Seconds per element on the slowest rank.
struct StepCosts {
  double host = 0;    // AdamW on the rank's cores
  double device = 0;  // masters and moments over the link, in both directions at once
};

// Measures both costs on all ranks at once, as ranks of a host share its memory. Collective. Needs
// less memory than the offloaded state. The link costs nothing on the CPU.
StepCosts measure_step_costs(const UnitOptimizerContext& context, const OffloadConfig& offload,
                             Communicator& world, const HostShare& share);

}  // namespace tessera
