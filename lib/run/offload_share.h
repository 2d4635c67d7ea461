// SPDX-License-Identifier: MIT
#pragma once
// --offload_gpu_memory auto of a run.
#include <c10/core/Device.h>

#include <cstdint>

#include "lib/run/memory_advice.h"
#include "lib/run/prepare.h"

namespace tessera::programs {

// OffloadConfig::device_bytes where the flag says auto: what a rank has left by plan. config: the
// layout that runs. 0 on the CPU, and where memory cannot be planned.
int64_t choose_device_bytes(const Prepared& run, const ParallelConfig& config, at::Device device,
                            int64_t ranks, const AvailableMemory& available);

}  // namespace tessera::programs
