// SPDX-License-Identifier: MIT
#pragma once
// Layouts of one model, and measurements on each rank.
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
  std::string remark;  // about the model, for messages
  OptimizerFactory optimizer = make_adamw({});

  int ranks() const;
  std::string name() const;
};

ModelSpec small_bloom();
ModelSpec small_experts();  // of 4 experts

// The model in every strategy alone, and in the legal combinations.
std::vector<Layout> layouts();
// The model with whole matrices to update.
std::vector<Layout> matrix_layouts();
// A pile (pile.h) in the same layouts and in others that change memory: blocks of all sizes.
std::vector<Layout> memory_layouts();

struct Measured {
  StrategyMemory reported;
  // Counted by this rank's allocator.
  int64_t live_after_attach = 0, peak_of_attach = 0, live_after_step = 0, peak_of_steps = 0;
  int64_t saved_by_all = 0;  // bytes of a checkpoint
  // Over all axes, in the second step including what the third one completes.
  int64_t sent_in_a_step = 0;
  CommunicationLedger communication;  // of the second step
};

std::vector<MicroBatch> batches_of(const Layout& layout);

// The model, attached and trained for two steps.
Measured measure(Communicator& world, const Layout& layout);

}  // namespace tessera::testing
