// SPDX-License-Identifier: MIT
// Schedules with a vocabulary shared by all stages.
#include "tessera/backends/pipeline/schedule.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using Kind = PipelineAction::Kind;

// [Note: intervals]
// Head passes need all stages at once, so they divide a step into intervals: interval i ends with
// the head's pass of micro-batch i. In it a stage runs the forward of micro-batch i + lead and the
// backward of i - lag, in either order. Its outputs are used in the next interval, with one
// exception: a stage that starts with its forward feeds a next stage that starts with its backward
// in the same interval, as forwards are no longer than backwards. Under 1f1b stages alternate
// between these two orders, and the last one starts with its backward: its forward of i comes right
// before the head's pass of i.
struct Pace {
  int lead = 0, lag = 0;
  bool backward_first = false;
};

// Schedule from paces by distance from the last stage.
PipelineSchedule in_intervals(const std::vector<Pace>& paces, int micro_batches) {
  const auto stages = static_cast<int>(paces.size());
  PipelineSchedule schedule{.micro_batches = micro_batches, .shared_vocabulary = true};
  const Pace& first = paces.back();
  for (int s = 0; s < stages; ++s) {
    const Pace& pace = paces[static_cast<size_t>(stages - 1 - s)];
    auto& actions = schedule.stages.emplace_back();
    auto add = [&](Kind kind, int m) {
      if (m >= 0 && m < micro_batches) actions.push_back({kind, m});
    };
    for (int m = 0; m <= first.lead; ++m) add(Kind::kEmbed, m);
    for (int i = -first.lead; i < micro_batches + first.lag; ++i) {
      if (pace.backward_first) add(Kind::kBackward, i - pace.lag);
      add(Kind::kForward, i + pace.lead);
      if (!pace.backward_first) add(Kind::kBackward, i - pace.lag);
      if (i < 0 || i >= micro_batches) continue;
      add(Kind::kHead, i);
      add(Kind::kEmbedBackward, i - first.lag);
      add(Kind::kEmbed, i + 1 + first.lead);
    }
    for (int m = micro_batches - first.lag; m < micro_batches; ++m) add(Kind::kEmbedBackward, m);
  }
  return schedule;
}

void check_sizes(int stages, int micro_batches) {
  check(stages >= 1 && micro_batches >= 1, ErrorCode::kInvalidArgument, "a pipeline of ", stages,
        " stages with ", micro_batches, " micro-batches; each must be at least 1");
}

}  // namespace

PipelineSchedule shared_gpipe(int stages, int micro_batches) {
  check_sizes(stages, micro_batches);
  std::vector<Pace> paces;
  for (int d = 0; d < stages; ++d) paces.push_back({.lead = d, .lag = micro_batches + d});
  return in_intervals(paces, micro_batches);
}

PipelineSchedule shared_one_f_one_b(int stages, int micro_batches) {
  check_sizes(stages, micro_batches);
  std::vector<Pace> paces;
  for (int d = 0; d < stages; ++d) {
    paces.push_back({.lead = d / 2, .lag = d + 1, .backward_first = d % 2 == 0});
  }
  return in_intervals(paces, micro_batches);
}

}  // namespace tessera
