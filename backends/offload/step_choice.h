// SPDX-License-Identifier: MIT
#pragma once
// Where the update of offloaded state runs when the user leaves it open.
#include "backends/offload/host_share.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/backends/unit_optimizer.h"

namespace tessera {

// Seconds an element, the slowest rank's.
struct StepCosts {
  double host = 0;    // AdamW on the rank's cores
  double device = 0;  // masters and moments over the link, both ways at once
};

// Collective: all ranks measure at the same time, since those of a host share its memory. Needs
// less memory than the offloaded state will. The link costs nothing on the CPU.
StepCosts measure_step_costs(const UnitOptimizerContext& context, const OffloadConfig& offload,
                             Communicator& world, const HostShare& share);

}  // namespace tessera
