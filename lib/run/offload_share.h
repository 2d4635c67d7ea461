// SPDX-License-Identifier: MIT
#pragma once
// --offload_keep_on_gpu auto.
#include <c10/core/Device.h>

#include <cstdint>

#include "lib/plan/memory_plan.h"
#include "lib/run/memory_advice.h"
#include "lib/run/prepare.h"

namespace tessera::programs {

// OffloadConfig::device_bytes for "auto": a rank's free memory by plan. 0 on the CPU and without a
// plan. largest: the largest micro-batch.
int64_t choose_device_bytes(PlannedLayout layout, const BatchShape& largest, at::Device device,
                            const AvailableMemory& available, const BetweenSteps& between = {});
// As above for a run with the layout `config`.
int64_t choose_device_bytes(const Prepared& run, const ParallelConfig& config, at::Device device,
                            int64_t ranks, const AvailableMemory& available);

}  // namespace tessera::programs
