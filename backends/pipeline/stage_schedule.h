// SPDX-License-Identifier: MIT
#pragma once
// One stage's slots and messages in a step, derived from the schedule of all stages.
#include <optional>
#include <vector>

#include "tessera/backends/pipeline/schedule.h"

namespace tessera {

// Plan of a stage. A slot is the index of an action in the stage's list.
struct StageSchedule {
  struct Slot {
    PipelineAction action;
    std::optional<PipelineMessage> input, output;
    int output_needed = 0;  // the destination's slot that uses the output
  };
  struct Arrival {
    PipelineMessage message;
    int sent = 0;    // the source's slot that sends it
    int needed = 0;  // this stage's slot that uses it
    // due: the earliest slot that uses it or a later message of the same source, as a pair's
    // messages are received in order; or the source's next pass of all stages. open: earliest slot
    // of its receive, after the source's previous pass, so that no message is pending while all
    // stages wait for each other.
    int due = 0, open = 0;
    int next_round = 0;  // first slot here in a later round than the one that sends it
  };
  int stage = 0, stages = 1;
  // Whether slots run in rounds, each of which needs only messages of earlier rounds. With several
  // chunks per stage, stages that wait for every pending message can deadlock, unless a round's
  // messages have arrived before the next one starts.
  bool has_rounds = false;
  bool splits_backward = false;  // see PipelineSchedule
  std::vector<Slot> slots;
  std::vector<std::vector<Arrival>> arrivals;  // by source, in the order sent
};

StageSchedule stage_schedule(const PipelineSchedule& schedule, int stage);

}  // namespace tessera
