// SPDX-License-Identifier: MIT
#pragma once
// Choice of the location of offloaded updates (OffloadStep::kAuto).
#include "backends/offload/host_share.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/backends/unit_optimizer.h"

namespace tessera {

// Seconds per element on the slowest rank. 0: not measured.
struct StepCosts {
  double host = 0;    // AdamW on the rank's cores
  double device = 0;  // masters and moments over the link, in both directions at once
  double host_beside = 0, device_beside = 0;  // the same while the other one runs

  // Both at once: their rates add up.
  double both() const { return 1 / (1 / host_beside + 1 / device_beside); }
};

// Measures all costs on all ranks at once, as ranks of a host share its memory. Collective. Needs
// less memory than the offloaded state. The link costs nothing on the CPU. Costs beside each other
// are measured with page-locked memory alone: other copies keep the calling thread.
StepCosts measure_step_costs(const UnitOptimizerContext& context, const OffloadConfig& offload,
                             Communicator& world, const HostShare& share);

// The fastest step by costs of a GPU: both at once only where it saves a tenth.
OffloadStep fastest_step(const StepCosts& costs);

}  // namespace tessera
