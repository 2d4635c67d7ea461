// SPDX-License-Identifier: MIT
#pragma once
// Simulator of pipeline schedules: correctness, micro-batches in flight, idle time.
#include <vector>

#include "tessera/backends/pipeline/schedule.h"

namespace tessera {

struct SimulationOptions {
  // Cost of one micro-batch in one part of the model, in any unit; by part, or by stage and divided
  // evenly over its chunks. Empty: forward 1 and backward 2 per stage. weights: share of backward
  // that a split one defers.
  struct Cost {
    double forward = 1, backward = 2, weights = 1;
  };
  std::vector<Cost> costs;
  // Cost on each stage of one pass of all stages with a shared vocabulary.
  double embed = 0, head = 0, embed_backward = 0;
  double transfer = 0;  // latency of a message; occupies no stage
  // Senders wait until their message is received; false: sends are buffered.
  bool blocking_sends = false;
  // Number of actions before its use at which a message's receive is posted.
  int receives_ahead = 2;
};

struct Simulation {
  double makespan = 0;       // from the first action's start to the last one's end
  std::vector<double> busy;  // by stage
  // By stage, the most micro-batches whose backward, weight gradients included, is not done; and
  // those of them that wait only for weight gradients.
  std::vector<int> most_in_flight, most_deferred;
  double bubble() const;  // idle share of all stages until the makespan
  double idle_share(int stage) const { return 1 - busy[static_cast<size_t>(stage)] / makespan; }
};

// Simulates and checks a schedule. Throws Error(kInvalidArgument) with stage and action when
// - a micro-batch does not pass every part forward and backward exactly once, in that order, or
//   micro-batches overtake each other in a part,
// - weight gradients under a split backward are missing, repeated or before the input's gradient,
//   or exist without a split,
// - passes of all stages differ in order between stages, or precede their inputs,
// - of a deadlock (the message lists what each stage waits for). A schedule without backwards is an
//   evaluation: only its forwards are checked.
Simulation simulate(const PipelineSchedule& schedule, const SimulationOptions& options = {});

}  // namespace tessera
