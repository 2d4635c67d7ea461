// SPDX-License-Identifier: MIT
#pragma once
// --offload_gpu_memory auto of a run.
#include <c10/core/Device.h>

#include <cstdint>

#include "lib/plan/memory_plan.h"
#include "lib/run/memory_advice.h"
#include "lib/run/prepare.h"

namespace tessera::programs {

// OffloadConfig::device_bytes where the flag says auto: what a rank has left by plan. 0 on the CPU,
// and where memory cannot be planned. largest: of the micro-batches.
int64_t choose_device_bytes(LayoutPlan plan, const BatchShape& largest, at::Device device,
                            const AvailableMemory& available, const BetweenSteps& between = {});
// The same of a run whose layout is `config`.
int64_t choose_device_bytes(const Prepared& run, const ParallelConfig& config, at::Device device,
                            int64_t ranks, const AvailableMemory& available);

}  // namespace tessera::programs
