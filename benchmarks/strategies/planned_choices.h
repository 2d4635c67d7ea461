// SPDX-License-Identifier: MIT
#pragma once
// What of a row's layout a memory plan chooses.
#include <cstdint>
#include <functional>

#include "benchmarks/strategies/bench_options.h"
#include "lib/run/memory_advice.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/comm/communicator.h"
#include "tessera/model/model_spec.h"

namespace tessera::bench {

struct PlannedRow {
  const Options& options;
  int64_t micro_batch;
  const ModelSpec& model;
  const Communicator& world;
  // Collective: what the rank with least has, of a host its share.
  std::function<programs::AvailableMemory()> available;
};

// Of the stage that has most; -1: nothing was asked for.
struct PlannedChoices {
  int64_t recomputed_blocks = -1;
  int64_t activation_bytes = -1;  // by plan, with the workspace of matrix products
  int64_t device_bytes = -1;      // of offloaded state on the device
};

// Collective. Sets the blocks of --activation_memory and the bytes of --offload_gpu_memory auto in
// `config`, the same on all ranks. Throws Error(kResourceExhausted) where no choice fits.
PlannedChoices choose_by_plan(const PlannedRow& row, ParallelConfig& config);

}  // namespace tessera::bench
