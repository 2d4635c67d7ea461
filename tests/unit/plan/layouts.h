// SPDX-License-Identifier: MIT
#pragma once
// Ways to spread one model over ranks, and what was measured on each of them.
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/backends/strategy.h"
#include "tessera/comm/communication_ledger.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/optim/adamw.h"

namespace tessera::testing {

struct Layout {
  ParallelConfig parallel;
  MeshExtents mesh;
  int accumulation = 1;
  ModelSpec model;
  std::string remark;  // of the model, for messages
  OptimizerFactory optimizer = make_adamw({});

  int ranks() const;
  std::string name() const;
};

ModelSpec small_bloom();

// It under every strategy alone, and under the legal combinations.
std::vector<Layout> layouts();
// It with whole matrices to update.
std::vector<Layout> matrix_layouts();
// A pile (pile.h) under the same, and what else changes memory: blocks of all sizes.
std::vector<Layout> memory_layouts();

struct Measured {
  StrategyMemory reported;
  // What the allocator counted for this rank.
  int64_t live_after_attach = 0, peak_of_attach = 0, live_after_step = 0, peak_of_steps = 0;
  int64_t saved_by_all = 0;    // bytes of a checkpoint
  int64_t sent_in_a_step = 0;  // over all axes, in the second step and what it leaves to the third
  CommunicationLedger communication;  // of the second step
};

std::vector<MicroBatch> batches_of(const Layout& layout);

// The model, attached and trained for two steps.
Measured measure(Communicator& world, const Layout& layout);

}  // namespace tessera::testing
