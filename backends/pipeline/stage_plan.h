// SPDX-License-Identifier: MIT
#pragma once
// What one stage does in a step, derived from the schedule of all stages.
#include <optional>
#include <vector>

#include "tessera/backends/pipeline/schedule.h"

namespace tessera {

// A turn is the index of an action in its stage's list.
struct StagePlan {
  struct Turn {
    PipelineAction action;
    std::optional<PipelineMessage> input, output;
    int output_needed = 0;  // the destination's turn that takes the output
  };
  struct Arrival {
    PipelineMessage message;
    int sent = 0;    // the source's turn that makes it
    int needed = 0;  // my turn that takes it
    // The earliest turn that takes it or a later message of the same source, because messages of a
    // pair are received in the order in which they are sent; or that of the source's next pass of
    // all stages. For the same reason its receive begins no earlier than `open`, behind the
    // source's pass before: no message is under way while all stages wait for each other.
    int due = 0, open = 0;
    int next_round = 0;  // my first turn of a later round than the one in which it is sent
  };
  int stage = 0, stages = 1;
  // A turn of a round needs what turns of earlier rounds send. Where a stage has several chunks,
  // stages whose devices wait, in their turns, for every message under way can come to wait for
  // each other; not where the messages of a round have arrived before anyone begins the next.
  bool has_rounds = false;
  bool splits_backward = false;  // see PipelineSchedule
  std::vector<Turn> turns;
  std::vector<std::vector<Arrival>> arrivals;  // by source, in the order sent
};

StagePlan plan_stage(const PipelineSchedule& schedule, int stage);

}  // namespace tessera
