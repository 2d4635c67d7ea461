// SPDX-License-Identifier: MIT
#pragma once
// What a run with these options would hold and take: from shapes alone.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lib/plan/card.h"
#include "lib/plan/recomputation.h"
#include "lib/run/prepare.h"

namespace tessera::programs {

// Where the run would be, beside its options.
struct Place {
  Card card;
  int64_t ranks = 1, ranks_of_host = 8;
  double efficiency = 0;  // of the peak that matrix products reach; 0: as measured on such a device
};

// Seconds of a step.
struct StepTime {
  double compute = 0, bubble = 0, exposed = 0, optimizer = 0, offload = 0;  // exposed communication
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
  double more_operations = 0;     // of what runs again, as a share of a step's others
  std::vector<Message> messages;  // of a rank of the first stage
  StepTime time;
  int64_t global_batch = 0;
  double tokens_per_s = 0;  // of all ranks
  bool saves = false;       // copies of the state, while it is written

  const MemoryPlan& largest(const Card& card) const;
  bool fits(const Card& card) const {
    return largest(card).needed(card) <= card.memory_bytes &&
           std::ranges::all_of(recomputation, &StageRecomputation::fits);
  }
};

// The model's shapes under these options. Throws as prepare() does.
Prepared prepare_shapes(const TrainOptions& options, Program program);

// Throws Error(kInvalidArgument) for options that no run would take. passes: see LayoutPlan.
// stages: how many are planned, from the first on.
RunPlan plan_run(const Prepared& model, const TrainOptions& options, const Place& place,
                 std::shared_ptr<EqualPasses> passes = nullptr,
                 int stages = std::numeric_limits<int>::max());

}  // namespace tessera::programs
