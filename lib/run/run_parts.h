// SPDX-License-Identifier: MIT
#pragma once
// What a run is made of on one rank, from the layout to the trainer.
#include <memory>
#include <optional>
#include <vector>

#include "lib/run/communication_check.h"
#include "lib/run/run_checkpoints.h"
#include "lib/run/run_context.h"
#include "lib/run/run_planner.h"
#include "lib/run/run_task.h"
#include "tessera/checkpoint/checkpoint_writer.h"
#include "tessera/comm/device_mesh.h"

namespace tessera::programs {

struct RunParts {
  std::unique_ptr<CommunicationCheck> communication_check;  // null: nothing is compared
  std::unique_ptr<DeviceMesh> mesh;
  std::unique_ptr<StepSource> batches;
  std::unique_ptr<Strategy> strategy;
  int64_t total_steps = 0;
  std::vector<StageRecomputation> recomputation;  // by stage; empty without --activation_memory
  int64_t offload_device_bytes = 0;               // OffloadConfig::device_bytes
  ParallelConfig parallel;                        // of the strategy
  // With build():
  std::optional<RunPlanner::Plan> plan;  // nothing: memory is not planned
  std::optional<Resumed> resumed;
  std::unique_ptr<Trainer> trainer;
  int64_t steps = 0;       // made so far, all of them reported
  int64_t data_begun = 0;  // step before the first on this data
  std::optional<RunState::Best> best;
  std::string id;  // RunState::id; with open_checkpoints()
  // Largest over ranks: parameters, gradients, optimizer, buffers, host, pinned.
  std::vector<int64_t> memory;
  // With open_checkpoints(); null: none are written.
  std::unique_ptr<CheckpointWriter> writer;

  double epoch() const;
};

// Everything that can be refused without memory for the model. Collective, as all of these.
std::unique_ptr<RunParts> plan_run(const RunContext& run);
// Says what the user should know; with --dry_run what would run.
void describe(const RunContext& run, const RunParts& parts);
// The model, filled from a checkpoint where one is asked for, and its trainer.
void build(const RunContext& run, RunParts& parts);
void open_checkpoints(const RunContext& run, RunParts& parts);

}  // namespace tessera::programs
