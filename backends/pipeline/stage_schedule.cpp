// SPDX-License-Identifier: MIT
#include "backends/pipeline/stage_schedule.h"

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera {
namespace {

int slot_of(const PipelineSchedule& schedule, int stage, const PipelineAction& action) {
  const auto& actions = schedule.stages[static_cast<size_t>(stage)];
  const auto found = std::find(actions.begin(), actions.end(), action);
  check(found != actions.end(), ErrorCode::kInternal, "stage ", stage, " has no ",
        to_string(action));
  return static_cast<int>(found - actions.begin());
}

// By stage and slot: start time of each slot if slots took 1 and messages 0.
std::vector<std::vector<int>> rounds_of(const PipelineSchedule& schedule) {
  const int stages = schedule.stage_count();
  std::vector<std::vector<int>> needs(static_cast<size_t>(stages)), rounds = needs;
  for (size_t s = 0; s < needs.size(); ++s) needs[s].assign(schedule.stages[s].size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < stages; ++stage) {
      const auto s = static_cast<size_t>(stage);
      while (rounds[s].size() < needs[s].size()) {
        const PipelineAction& action = schedule.stages[s][rounds[s].size()];
        const int need = needs[s][rounds[s].size()];
        if (need == 0 && input_of(schedule, stage, action)) break;
        const int round = std::max(need, rounds[s].empty() ? 0 : rounds[s].back() + 1);
        rounds[s].push_back(round);
        moved = true;
        if (const auto output = output_of(schedule, stage, action)) {
          const int slot = slot_of(schedule, output->destination, output->action);
          needs[static_cast<size_t>(output->destination)][static_cast<size_t>(slot)] = round + 1;
        }
      }
    }
  }
  return rounds;
}

}  // namespace

StageSchedule stage_schedule(const PipelineSchedule& schedule, int stage) {
  StageSchedule result{.stage = stage,
                       .stages = schedule.stage_count(),
                       .has_rounds = schedule.chunks > 1,
                       .splits_backward = schedule.splits_backward};
  const auto rounds = result.has_rounds ? rounds_of(schedule) : std::vector<std::vector<int>>();
  for (const auto& action : schedule.stages.at(static_cast<size_t>(stage))) {
    StageSchedule::Slot slot{action, input_of(schedule, stage, action),
                             output_of(schedule, stage, action)};
    if (slot.output) {
      slot.output_needed = slot_of(schedule, slot.output->destination, slot.output->action);
    }
    result.slots.push_back(std::move(slot));
  }
  for (int source = 0; source < result.stages; ++source) {
    auto& arrivals = result.arrivals.emplace_back();
    const auto& actions = schedule.stages[static_cast<size_t>(source)];
    int open = 0;
    for (size_t sent = 0; sent < actions.size(); ++sent) {
      if (actions[sent].of_all_stages()) open = slot_of(schedule, stage, actions[sent]) + 1;
      const auto message = output_of(schedule, source, actions[sent]);
      if (!message || message->destination != stage) continue;
      const int needed = slot_of(schedule, stage, message->action);
      const auto pass =
          std::find_if(actions.begin() + static_cast<ptrdiff_t>(sent), actions.end(),
                       [](const PipelineAction& action) { return action.of_all_stages(); });
      const int due =
          pass == actions.end() ? needed : std::min(needed, slot_of(schedule, stage, *pass));
      arrivals.push_back({*message, static_cast<int>(sent), needed, due, open});
      if (!result.has_rounds) continue;
      const auto& mine = rounds[static_cast<size_t>(stage)];
      const int round = rounds[static_cast<size_t>(source)][sent];
      const auto next = std::upper_bound(mine.begin(), mine.end(), round);
      arrivals.back().next_round = static_cast<int>(next - mine.begin());
    }
    for (size_t i = arrivals.size(); i-- > 1;) {
      arrivals[i - 1].due = std::min(arrivals[i - 1].due, arrivals[i].due);
    }
  }
  return result;
}

}  // namespace tessera
