// SPDX-License-Identifier: MIT
#pragma once
// Plays a pipeline schedule without any model: is it correct, what does it hold, how long is it
// idle.
#include <vector>

#include "tessera/backends/pipeline/schedule.h"

namespace tessera {

struct SimulationOptions {
  // Of one micro-batch in one part of the model, any unit of time; by part, or by stage and then
  // shared evenly by its chunks. Empty: forward 1 and backward 2 a stage.
  // weights: of backward, what a split one does later.
  struct Cost {
    double forward = 1, backward = 2, weights = 1;
  };
  std::vector<Cost> costs;
  // Of one pass of all stages with a shared vocabulary, on each of them.
  double embed = 0, head = 0, embed_backward = 0;
  double transfer = 0;  // from a message's departure to its arrival; no stage works for it
  // A sender goes on only when its message has been received; else sends are buffered.
  bool blocking_sends = false;
  // How many actions before the one that needs it a message's receive is posted.
  int receives_ahead = 2;
};

struct Simulation {
  double makespan = 0;       // from the first action's begin to the last one's end
  std::vector<double> busy;  // by stage
  // By stage, at most: forwards whose backward, with that of the weights, has not ended; and of
  // these the ones that wait for their weight gradients alone.
  std::vector<int> most_in_flight, most_deferred;
  double bubble() const;  // idle share of all stages until the makespan
  double idle_share(int stage) const { return 1 - busy[static_cast<size_t>(stage)] / makespan; }
};

// Throws Error(kInvalidArgument) naming stage and action when
// - a micro-batch does not pass every part forth and back exactly once, or runs back before it ran
//   forth, or micro-batches overtake each other in a part,
// - weight gradients are missing, made twice or before the gradient of the input, where backward is
//   split, or made at all where it is not,
// - passes of all stages differ in order between stages, or come before what they work on,
// - no stage can go on (the message lists what each waits for).
// A schedule without any backward is an evaluation: only its way forth is checked.
Simulation simulate(const PipelineSchedule& schedule, const SimulationOptions& options = {});

}  // namespace tessera
