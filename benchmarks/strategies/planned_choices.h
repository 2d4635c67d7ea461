// SPDX-License-Identifier: MIT
#pragma once
// Parts of a row's layout that a memory plan chooses.
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
  // Collective: memory of the rank with least, on a host its share.
  std::function<programs::AvailableMemory()> available;
};

// Choices for the stage that needs most; -1: not requested.
struct PlannedChoices {
  int64_t recomputed_blocks = -1;
  int64_t activation_bytes = -1;  // planned, with the workspace of matrix products
  int64_t device_bytes = -1;      // offloaded state on the device
};

// Sets the blocks of --activation_memory and the bytes of --offload_keep_on_gpu auto in `config`,
// equal on all ranks. Collective. Throws Error(kResourceExhausted) if nothing fits.
PlannedChoices choose_by_plan(const PlannedRow& row, ParallelConfig& config);

}  // namespace tessera::bench
