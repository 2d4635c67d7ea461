// SPDX-License-Identifier: MIT
#pragma once
// Memory and time of a run with these options, from shapes alone; as tables and as JSON.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lib/plan/card.h"
#include "lib/plan/recomputation.h"
#include "lib/run/prepare.h"

namespace tessera::programs {

// The planned hosts, beside the options.
struct PlannedHosts {
  Card card;
  int64_t ranks = 1, ranks_of_host = 8;
  double efficiency = 0;  // share of peak for matrix products; 0: as measured on such a device
};

// Seconds of a step.
struct StepTime {
  // Exposed: communication not overlapped.
  double compute = 0, bubble = 0, exposed = 0, optimizer = 0, offload = 0;
  double total() const { return compute + bubble + exposed + optimizer + offload; }
};

struct Message {
  Traffic traffic;
  bool between_hosts = false;
  double bytes_per_s = 0;
  double seconds() const { return traffic.bytes / bytes_per_s; }
};

struct RunPlan {
  TrainOptions options;
  MeshExtents mesh;
  std::vector<MemoryPlan> stages;
  std::vector<StageRecomputation> recomputation;  // by stage; empty without --activation_memory
  double more_operations = 0;     // of recomputation, as a share of a step's other FLOPs
  std::vector<Message> messages;  // of a rank of the first stage
  StepTime time;
  int64_t global_batch = 0;
  double tokens_per_s = 0;  // over all ranks
  bool saves = false;       // a checkpoint is written meanwhile, from a copy of the state

  const MemoryPlan& largest(const Card& card) const;
  bool fits(const Card& card) const {
    return largest(card).needed(card) <= card.memory_bytes &&
           std::ranges::all_of(recomputation, &StageRecomputation::fits);
  }
};

// The model's shapes for these options. Throws as prepare().
Prepared prepare_shapes(const TrainOptions& options, Program program);

// Throws Error(kInvalidArgument) unless the mesh has so many ranks.
void require_axes_divide(const TrainOptions& options, const MeshExtents& mesh, int64_t ranks);

// Throws Error(kInvalidArgument) for options that no run accepts. passes: see PlannedLayout.
// stages: number of planned stages, from the first.
RunPlan plan_run(const Prepared& model, const TrainOptions& options, const PlannedHosts& hosts,
                 std::shared_ptr<EqualPasses> passes = nullptr,
                 int stages = std::numeric_limits<int>::max());

// Time of a rank with this memory plan; config has the stages and recomputed blocks. run: options,
// mesh and messages must be set.
StepTime step_time(const Prepared& model, const RunPlan& run, const PlannedHosts& hosts,
                   const ParallelConfig& config, const MemoryPlan& memory);

std::string plan_text(const Prepared& model, const RunPlan& run, const PlannedHosts& hosts);
std::string plan_json(const Prepared& model, const RunPlan& run, const PlannedHosts& hosts);

}  // namespace tessera::programs
