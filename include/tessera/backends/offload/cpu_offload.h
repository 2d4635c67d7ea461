// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// CPU offload (Ren et al. 2021): master weights and moments in host memory, and optionally the
/// optimizer step on the CPU.
#include "tessera/backends/parallel_config.h"
#include "tessera/backends/unit_optimizer.h"

namespace tessera {

/// Factory of the optimizers that config.offload selects. Collective over world: ranks of one host
/// divide its cores. attach() throws Error(kResourceExhausted) on every rank when a host's memory
/// is too small, before any large allocation.
UnitOptimizerFactory make_cpu_offload(const ParallelConfig& config, Communicator& world);

}  // namespace tessera
