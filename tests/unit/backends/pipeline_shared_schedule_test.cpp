// SPDX-License-Identifier: MIT
// Schedules with a vocabulary shared by all stages, for many sizes, and the simulator on broken
// ones.
#include <algorithm>

#include "backends/pipeline/simulator.h"
#include "backends/pipeline/stage_schedule.h"
#include "tessera/backends/pipeline/schedule.h"
#include "tessera/core/error.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using tessera::test::contains;
using Kind = PipelineAction::Kind;

namespace {

std::string text(const std::vector<PipelineAction>& actions) {
  std::string joined;
  for (const auto& action : actions) {
    const char* names[] = {"F", "B", "e", "H", "E"};
    joined +=
        concat(joined.empty() ? "" : " ", names[static_cast<int>(action.kind)], action.micro_batch);
  }
  return joined;
}

std::string refusal(const PipelineSchedule& schedule) {
  return error_of(ErrorCode::kInvalidArgument, [&] { simulate(schedule); });
}

size_t place_of(const PipelineSchedule& schedule, int stage, const PipelineAction& action) {
  const auto& actions = schedule.stages[static_cast<size_t>(stage)];
  return static_cast<size_t>(std::find(actions.begin(), actions.end(), action) - actions.begin());
}

}  // namespace

TEST_CASE("the orders with a shared vocabulary") {
  const auto flushed = shared_one_f_one_b(4, 4);
  CHECK(text(flushed.stages[0]) == "e0 e1 F0 F1 H0 e2 F2 H1 e3 F3 H2 H3 B0 B1 B2 B3 E0 E1 E2 E3");
  CHECK(text(shared_one_f_one_b(3, 4).stages[0]) ==
        "e0 e1 F0 F1 H0 e2 F2 H1 e3 F3 H2 B0 H3 E0 B1 B2 B3 E1 E2 E3");
  CHECK(text(shared_one_f_one_b(2, 4).stages[0]) ==
        "e0 F0 H0 e1 F1 H1 e2 F2 B0 H2 E0 e3 F3 B1 H3 E1 B2 B3 E2 E3");
  CHECK(text(shared_one_f_one_b(2, 4).stages[1]) ==
        "e0 F0 H0 e1 B0 F1 H1 e2 B1 F2 H2 E0 e3 B2 F3 H3 E1 B3 E2 E3");
  CHECK(text(shared_gpipe(2, 3).stages[0]) == "e0 e1 F0 F1 H0 e2 F2 H1 H2 B0 B1 B2 E0 E1 E2");
  CHECK(text(forwards_of(shared_gpipe(2, 3)).stages[1]) == "e0 e1 F0 H0 e2 F1 H1 F2 H2");
}

TEST_CASE("schedules with a shared vocabulary: no stall, no deadlock, and the bound in flight") {
  for (int stages = 1; stages <= 9; ++stages) {
    for (int batches = 1; batches <= 21; ++batches) {
      INFO(stages << " stages, " << batches << " micro-batches");
      for (const auto& schedule :
           {shared_gpipe(stages, batches), shared_one_f_one_b(stages, batches)}) {
        // Forward 1, backward 2 per stage; only the passes themselves are on the critical path.
        for (const double head : {0.0, 0.7, 5.0}) {
          SimulationOptions options{.embed = 0.125, .head = head, .embed_backward = 0.25};
          const double fill = 3.0 * (stages - 1), passes = batches * (head + 0.125 + 0.25);
          const Simulation played = simulate(schedule, options);
          CHECK(played.makespan == Approx(3.0 * batches + fill + passes).margin(1e-9));
          CHECK(played.bubble() == Approx(fill / played.makespan).margin(1e-12));
          options.blocking_sends = true;
          CHECK_NOTHROW(simulate(schedule, options));
        }
        const Simulation evaluation = simulate(forwards_of(schedule), {.head = 0.5});
        CHECK(evaluation.makespan >= Approx(stages - 1 + 1.5 * batches));
      }
      const auto most = simulate(shared_one_f_one_b(stages, batches)).most_in_flight;
      for (int s = 0; s < stages; ++s) {
        const int d = stages - 1 - s;
        CHECK(most[static_cast<size_t>(s)] <= std::min(batches, d + 1 + (d + 1) / 2));
      }
    }
  }
}

TEST_CASE("no message is under way while all stages wait for each other") {
  for (const auto& schedule : {shared_gpipe(5, 7), shared_one_f_one_b(5, 7)}) {
    auto passes_before = [&](int stage, int slot) {
      const auto& actions = schedule.stages[static_cast<size_t>(stage)];
      return std::count_if(actions.begin(), actions.begin() + slot,
                           [](const auto& action) { return action.of_all_stages(); });
    };
    size_t messages = 0;
    for (int to = 0; to < 5; ++to) {
      const auto arrivals = stage_schedule(schedule, to).arrivals;
      for (int from = 0; from < 5; ++from) {
        for (const auto& arrival : arrivals[static_cast<size_t>(from)]) {
          ++messages;
          CHECK(passes_before(to, arrival.due) == passes_before(from, arrival.sent));
          CHECK(passes_before(to, arrival.open) == passes_before(from, arrival.sent));
          CHECK(arrival.open <= arrival.due);
        }
      }
    }
    CHECK(messages == 2 * 4 * 7);
  }
}

TEST_CASE("the simulator names what is wrong with passes of all stages") {
  PipelineSchedule schedule = shared_one_f_one_b(3, 4);
  auto swap = [&](int stage, const PipelineAction& a, const PipelineAction& b) {
    auto& actions = schedule.stages[static_cast<size_t>(stage)];
    std::swap(actions[place_of(schedule, stage, a)], actions[place_of(schedule, stage, b)]);
  };
  swap(1, {Kind::kHead, 0}, {Kind::kEmbed, 2});
  CHECK_THAT(refusal(schedule), contains("stage 1 runs the embedding of micro-batch 2") &&
                                    contains("stage 0 runs the head of micro-batch 0"));
  schedule = shared_one_f_one_b(3, 4);
  swap(2, {Kind::kForward, 1}, {Kind::kHead, 1});
  CHECK_THAT(refusal(schedule), contains("stage 2: head of micro-batch 1") &&
                                    contains("before its forward of micro-batch 1"));
  schedule = shared_one_f_one_b(3, 4);
  schedule.stages[1].erase(schedule.stages[1].begin() +
                           static_cast<ptrdiff_t>(place_of(schedule, 1, {Kind::kHead, 3})));
  CHECK_THAT(refusal(schedule), contains("stage 1: 3 passes of all stages where 4 are expected"));
  schedule = shared_one_f_one_b(2, 4);
  swap(1, {Kind::kBackward, 0}, {Kind::kHead, 0});
  CHECK_THAT(refusal(schedule), contains("before its head of micro-batch 0"));
  // A forward after the pass that needs it: stages wait for each other.
  schedule = shared_one_f_one_b(2, 3);
  swap(0, {Kind::kForward, 0}, {Kind::kHead, 0});
  CHECK_THAT(refusal(schedule), contains("deadlocks") &&
                                    contains("stage 0 before head of micro-batch 0") &&
                                    contains("stage 1 before forward of micro-batch 0"));
  CHECK_THROWS_WITH(make_schedule("interleaved", 2, 4, 2, true), contains("all stages share"));
}
