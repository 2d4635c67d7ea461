// SPDX-License-Identifier: MIT
#include "tessera/backends/pipeline/schedule.h"

#include <algorithm>
#include <utility>

#include "backends/pipeline/schedule_kinds.h"
#include "lib/core/joined.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using Kind = PipelineAction::Kind;

PipelineSchedule empty_schedule(int stages, int micro_batches, int chunks) {
  check(stages >= 1 && micro_batches >= 1 && chunks >= 1, ErrorCode::kInvalidArgument,
        "a pipeline of ", stages, " stages x ", chunks, " chunks with ", micro_batches,
        " micro-batches; each must be at least 1");
  PipelineSchedule schedule{.micro_batches = micro_batches, .chunks = chunks};
  schedule.stages.resize(static_cast<size_t>(stages));
  return schedule;
}

// Runs `warm_up` forwards, then alternates forwards and backwards, then drains the backwards. Both
// lists have the same length.
std::vector<PipelineAction> alternate(const std::vector<PipelineAction>& forwards,
                                      const std::vector<PipelineAction>& backwards, int warm_up) {
  std::vector<PipelineAction> actions;
  size_t backward = 0;
  for (size_t forward = 0; forward < forwards.size(); ++forward) {
    actions.push_back(forwards[forward]);
    if (forward >= static_cast<size_t>(warm_up)) actions.push_back(backwards[backward++]);
  }
  actions.insert(actions.end(), backwards.begin() + static_cast<ptrdiff_t>(backward),
                 backwards.end());
  return actions;
}

// Sizes of groups of micro-batches, which differ by one at most, larger ones first. A later, larger
// group would need more forwards before its first backward than the warm-up made.
std::vector<int> group_sizes(int micro_batches, int stages) {
  const int groups = std::max(1, micro_batches / stages);
  std::vector<int> sizes(static_cast<size_t>(groups), micro_batches / groups);
  for (int i = 0; i < micro_batches % groups; ++i) ++sizes[static_cast<size_t>(i)];
  return sizes;
}

std::vector<PipelineAction> in_groups(Kind kind, const std::vector<int>& groups, int chunks) {
  std::vector<PipelineAction> actions;
  int first = 0;
  for (int size : groups) {
    for (int i = 0; i < chunks; ++i) {
      const int chunk = kind == Kind::kForward ? i : chunks - 1 - i;
      for (int m = first; m < first + size; ++m) actions.push_back({kind, m, chunk});
    }
    first += size;
  }
  return actions;
}

// Message between two parts for the same kind and micro-batch.
PipelineMessage message(const PipelineSchedule& schedule, int source_part, int destination_part,
                        const PipelineAction& action) {
  const int stages = schedule.stage_count();
  return {source_part % stages,
          destination_part % stages,
          {action.kind, action.micro_batch, destination_part / stages},
          std::max(source_part, destination_part)};
}

int step_of(const PipelineAction& action) { return action.kind == Kind::kForward ? 1 : -1; }

}  // namespace

std::string to_string(const PipelineAction& action) {
  const char* names[] = {"forward",         "backward", "embedding", "head", "embedding's backward",
                         "weight gradients"};
  return concat(names[static_cast<int>(action.kind)], " of micro-batch ", action.micro_batch,
                " in chunk ", action.chunk);
}

PipelineSchedule gpipe(int stages, int micro_batches) {
  PipelineSchedule schedule = empty_schedule(stages, micro_batches, 1);
  const auto forwards = in_groups(Kind::kForward, {micro_batches}, 1);
  const auto backwards = in_groups(Kind::kBackward, {micro_batches}, 1);
  for (auto& actions : schedule.stages) actions = alternate(forwards, backwards, micro_batches);
  return schedule;
}

PipelineSchedule one_f_one_b(int stages, int micro_batches) {
  PipelineSchedule schedule = empty_schedule(stages, micro_batches, 1);
  const auto forwards = in_groups(Kind::kForward, {micro_batches}, 1);
  const auto backwards = in_groups(Kind::kBackward, {micro_batches}, 1);
  for (int s = 0; s < stages; ++s) {
    schedule.stages[static_cast<size_t>(s)] = alternate(forwards, backwards, stages - 1 - s);
  }
  return schedule;
}

PipelineSchedule zero_bubble_h1(int stages, int micro_batches) {
  PipelineSchedule schedule = one_f_one_b(stages, micro_batches);
  schedule.splits_backward = true;
  for (int s = 0; s < stages; ++s) {
    auto& actions = schedule.stages[static_cast<size_t>(s)];
    int next = 0;
    for (const PipelineAction& action : std::exchange(actions, {})) {
      actions.push_back(action);
      if (action.kind != Kind::kBackward || action.micro_batch < s) continue;
      actions.push_back({Kind::kWeights, next++});
    }
    while (next < micro_batches) actions.push_back({Kind::kWeights, next++});
  }
  return schedule;
}

PipelineSchedule interleaved_one_f_one_b(int stages, int micro_batches, int chunks) {
  PipelineSchedule schedule = empty_schedule(stages, micro_batches, chunks);
  const auto groups = group_sizes(micro_batches, stages);
  const auto forwards = in_groups(Kind::kForward, groups, chunks);
  const auto backwards = in_groups(Kind::kBackward, groups, chunks);
  for (int s = 0; s < stages; ++s) {
    // The first backward needs all chunks of its micro-batch, and returns through as many actions.
    const int warm_up = micro_batches < stages
                            ? micro_batches * chunks
                            : (chunks - 1) * groups.front() + 2 * (stages - 1 - s);
    schedule.stages[static_cast<size_t>(s)] = alternate(forwards, backwards, warm_up);
  }
  return schedule;
}

ScheduleKind schedule_kind(const std::string& name) {
  ScheduleKind kind{};
  check(set_text(field_of(kind), name), ErrorCode::kInvalidArgument, "pipeline schedule \"", name,
        "\" is unknown; use one of ", joined(all_names<ScheduleKind>()));
  return kind;
}

PipelineSchedule make_schedule(const std::string& name, int stages, int micro_batches, int chunks,
                               bool shared_vocabulary) {
  const ScheduleKind kind = schedule_kind(name);
  if (kind == ScheduleKind::kInterleaved) {
    check(!shared_vocabulary, ErrorCode::kInvalidArgument, "pipeline schedule interleaved has no ",
          "order for a vocabulary that all stages share; use gpipe or 1f1b");
    check(chunks >= 2, ErrorCode::kInvalidArgument, "pipeline schedule interleaved needs at least ",
          "2 chunks a stage, not ", chunks, "; set chunks, or use 1f1b");
    return interleaved_one_f_one_b(stages, micro_batches, chunks);
  }
  check(chunks == 1, ErrorCode::kInvalidArgument, "pipeline schedule ", name, " has one chunk a ",
        "stage, not ", chunks, "; set chunks to 1, or use interleaved");
  if (kind == ScheduleKind::kZeroBubbleH1) {
    check(!shared_vocabulary, ErrorCode::kInvalidArgument, "pipeline schedule zbh1 has no order ",
          "for a vocabulary that all stages share; use gpipe or 1f1b");
    return zero_bubble_h1(stages, micro_batches);
  }
  if (kind == ScheduleKind::kGPipe) {
    return shared_vocabulary ? shared_gpipe(stages, micro_batches) : gpipe(stages, micro_batches);
  }
  return shared_vocabulary ? shared_one_f_one_b(stages, micro_batches)
                           : one_f_one_b(stages, micro_batches);
}

bool backward_follows_loss(const std::string& name) {
  const ScheduleKind kind = schedule_kind(name);
  return kind == ScheduleKind::kOneFOneB || kind == ScheduleKind::kZeroBubbleH1;
}

bool splits_backward(const std::string& name) {
  return schedule_kind(name) == ScheduleKind::kZeroBubbleH1;
}

PipelineSchedule forwards_of(const PipelineSchedule& schedule) {
  PipelineSchedule forwards = schedule;
  for (auto& actions : forwards.stages) {
    std::erase_if(actions, [](const auto& action) {
      return action.kind == Kind::kBackward || action.kind == Kind::kWeights ||
             action.kind == Kind::kEmbedBackward;
    });
  }
  return forwards;
}

double bubble_share(int stages, int micro_batches, int chunks) {
  return (stages - 1.0) / (1.0 * chunks * micro_batches + stages - 1.0);
}

double split_bubble_share(int stages, int micro_batches) {
  const double idle = 2.0 * (stages - 1) - std::min(stages, micro_batches) + 1;
  return idle / (3.0 * micro_batches + idle);
}

std::optional<PipelineMessage> input_of(const PipelineSchedule& schedule, int stage,
                                        const PipelineAction& action) {
  if (action.of_all_stages() || action.kind == Kind::kWeights) return std::nullopt;
  const int part = schedule.part(stage, action), source = part - step_of(action);
  if (source < 0 || source >= schedule.part_count()) return std::nullopt;
  return message(schedule, source, part, action);
}

std::optional<PipelineMessage> output_of(const PipelineSchedule& schedule, int stage,
                                         const PipelineAction& action) {
  if (action.of_all_stages() || action.kind == Kind::kWeights) return std::nullopt;
  const int part = schedule.part(stage, action), destination = part + step_of(action);
  if (destination < 0 || destination >= schedule.part_count()) return std::nullopt;
  return message(schedule, part, destination, action);
}

}  // namespace tessera
