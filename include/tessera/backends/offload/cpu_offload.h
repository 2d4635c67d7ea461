// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// CPU offload (Ren et al. 2021): master weights and moments in host memory, and optionally the
/// step there too.
#include "tessera/backends/parallel_config.h"
#include "tessera/backends/unit_optimizer.h"

namespace tessera {

/// The placement that config.offload asks for. Collective over world: ranks of one host share its
/// cores. attach() then throws Error(kResourceExhausted) on every rank when a host's memory is too
/// small, before anything large is allocated.
UnitOptimizerFactory make_cpu_offload(const ParallelConfig& config, Communicator& world);

}  // namespace tessera
