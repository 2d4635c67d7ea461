// SPDX-License-Identifier: MIT
#pragma once
// Parts of a run on one rank, from the layout to the trainer.
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
  std::unique_ptr<CommunicationCheck> communication_check;  // null: no check
  std::unique_ptr<DeviceMesh> mesh;
  std::unique_ptr<StepSource> batches;
  std::unique_ptr<Strategy> strategy;
  int64_t total_steps = 0;
  std::vector<StageRecomputation> recomputation;  // by stage; empty without --activation_memory
  std::string fp8_layers;                         // with --fp8 auto: those in 8 bits, or "none"
  int64_t offload_device_bytes = 0;               // OffloadConfig::device_bytes
  ParallelConfig parallel;                        // the strategy's configuration
  // Set by build():
  std::optional<RunPlanner::CheckedLayout> checked;  // empty: memory is not planned
  std::optional<Resumed> resumed;
  std::unique_ptr<Trainer> trainer;
  int64_t steps = 0;       // completed and reported
  int64_t data_begun = 0;  // step before the first one on this data
  std::optional<RunState::Best> best;
  std::string id;  // RunState::id; set by open_checkpoints()
  // Maximum over ranks in bytes: parameters, gradients, optimizer, buffers, host, pinned.
  std::vector<int64_t> memory;
  // Set by open_checkpoints(); null: no checkpoints.
  std::unique_ptr<CheckpointWriter> writer;

  double epoch() const;
};

// Makes every check that needs no memory for the model. Collective, like all functions here.
std::unique_ptr<RunParts> plan_run(const RunContext& run);
// Prints notices for the user; with --dry_run the plan of the run.
void describe(const RunContext& run, const RunParts& parts);
// Builds the model, loads a checkpoint if asked for, and makes the trainer.
void build(const RunContext& run, RunParts& parts);
void open_checkpoints(const RunContext& run, RunParts& parts);

}  // namespace tessera::programs
