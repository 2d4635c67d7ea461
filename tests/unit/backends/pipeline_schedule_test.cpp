// SPDX-License-Identifier: MIT
// Pipeline schedules of many sizes in the simulator, and the simulator itself on broken ones.
#include <algorithm>
#include <tuple>

#include "backends/pipeline/simulator.h"
#include "tessera/backends/pipeline/schedule.h"
#include "tessera/core/error.h"
#include "tests/support/test.hpp"

using namespace tessera;
using tessera::test::contains;
using Kind = PipelineAction::Kind;

namespace {

// Both kinds of sends; returns the times with buffered ones. Blocking sends may need receives
// posted earlier.
Simulation play(const PipelineSchedule& schedule, const SimulationOptions& given = {},
                int further_ahead = 0) {
  SimulationOptions options = given;
  options.blocking_sends = true;
  options.receives_ahead += further_ahead;
  simulate(schedule, options);
  return simulate(schedule, given);
}

std::string refusal(const PipelineSchedule& schedule, const SimulationOptions& options = {}) {
  try {
    simulate(schedule, options);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

std::string text(const std::vector<PipelineAction>& actions) {
  std::string joined;
  for (const auto& action : actions) {
    const char* kind = action.kind == Kind::kForward   ? "F"
                       : action.kind == Kind::kWeights ? "W"
                                                       : "B";
    joined +=
        concat(joined.empty() ? "" : " ", kind, action.micro_batch, action.chunk == 0 ? "" : "'");
  }
  return joined;
}

}  // namespace

TEST_CASE("the orders of the papers") {
  const auto flushed = one_f_one_b(4, 5);
  CHECK(text(flushed.stages[0]) == "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4");
  CHECK(text(flushed.stages[2]) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4");
  CHECK(text(flushed.stages[3]) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4");
  CHECK(text(gpipe(2, 3).stages[1]) == "F0 F1 F2 B0 B1 B2");
  const auto split = zero_bubble_h1(4, 5);
  CHECK(text(split.stages[0]) == "F0 F1 F2 F3 B0 W0 F4 B1 W1 B2 W2 B3 W3 B4 W4");
  CHECK(text(split.stages[2]) == "F0 F1 B0 F2 B1 F3 B2 W0 F4 B3 W1 B4 W2 W3 W4");
  CHECK(text(split.stages[3]) == "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 W2 W3 W4");
  CHECK(text(forwards_of(split).stages[3]) == "F0 F1 F2 F3 F4");
  const auto interleaved = interleaved_one_f_one_b(2, 4, 2);
  CHECK(text(interleaved.stages[0]) == "F0 F1 F0' F1' F2 B0' F3 B1' F2' B0 F3' B1 B2' B3' B2 B3");
  CHECK(text(interleaved.stages[1]) == "F0 F1 F0' B0' F1' B1' F2 B0 F3 B1 F2' B2' F3' B3' B2 B3");
}

TEST_CASE("gpipe and 1f1b are correct, as idle as the formula says, and hold what they may") {
  for (int stages = 1; stages <= 9; ++stages) {
    for (int batches = 1; batches <= 21; ++batches) {
      INFO(stages << " stages, " << batches << " micro-batches");
      const Simulation all = play(gpipe(stages, batches));
      const Simulation flushed = play(one_f_one_b(stages, batches));
      CHECK(all.bubble() == Approx(bubble_share(stages, batches)).margin(1e-12));
      CHECK(flushed.bubble() == Approx(bubble_share(stages, batches)).margin(1e-12));
      for (int s = 0; s < stages; ++s) {
        CHECK(all.most_in_flight[static_cast<size_t>(s)] == batches);
        CHECK(flushed.most_in_flight[static_cast<size_t>(s)] == std::min(stages - s, batches));
      }
      CHECK(simulate(forwards_of(gpipe(stages, batches))).makespan == Approx(stages + batches - 1));
    }
  }
}

TEST_CASE(
    "zbh1 is correct for any sizes, has a third of 1f1b's bubble, and holds no more than it") {
  for (int stages = 1; stages <= 9; ++stages) {
    for (int batches = 1; batches <= 21; ++batches) {
      INFO(stages << " stages, " << batches << " micro-batches");
      const int most = std::min(stages, batches);
      // Costs of forward, input gradient, weight gradients.
      for (const auto& [f, b, w] : {std::tuple(1.0, 1.0, 1.0), std::tuple(1.0, 1.25, 0.75),
                                    std::tuple(1.0, 1.5, 0.5), std::tuple(0.8, 1.0, 0.9)}) {
        const SimulationOptions costs{.costs = std::vector<SimulationOptions::Cost>(
                                          static_cast<size_t>(stages), {f, b + w, w})};
        const Simulation played = play(zero_bubble_h1(stages, batches), costs);
        const Simulation flushed = play(one_f_one_b(stages, batches), costs);
        const double idle = (stages - 1) * (f + b) - (most - 1) * w;
        if (w <= f) CHECK(played.makespan == Approx(batches * (f + b + w) + idle));
        if (stages > 1) CHECK(played.makespan < flushed.makespan);
        for (size_t s = 0; s < static_cast<size_t>(stages); ++s) {
          // 1f1b's first stage holds as many.
          CHECK(played.most_in_flight[s] <= flushed.most_in_flight.front());
          const int waiting = played.most_deferred[s], own = static_cast<int>(s) + 1;
          CHECK(waiting == std::min(own, batches));
          CHECK(played.most_in_flight[s] <= flushed.most_in_flight[s] + waiting - 1);
          CHECK(flushed.most_deferred[s] == 0);
        }
      }
      CHECK(simulate(zero_bubble_h1(stages, batches)).bubble() ==
            Approx(split_bubble_share(stages, batches)).margin(1e-12));
    }
  }
  CHECK(split_bubble_share(4, 8) == Approx(3.0 / 27));
  CHECK(bubble_share(4, 8) == Approx(9.0 / 33));
}

TEST_CASE("interleaved 1f1b is correct for any sizes and shortens the bubble by its chunks") {
  for (int stages = 2; stages <= 8; ++stages) {
    for (int chunks = 1; chunks <= 4; ++chunks) {
      for (int batches = 1; batches <= 26; ++batches) {
        INFO(stages << " stages, " << chunks << " chunks, " << batches << " micro-batches");
        // Groups larger than the number of stages delay messages.
        const int groups = std::max(1, batches / stages);
        const int group = (batches + groups - 1) / groups;
        const int wait = 2 * std::max(0, group - stages);
        const Simulation played = play(interleaved_one_f_one_b(stages, batches, chunks), {}, wait);
        simulate(forwards_of(interleaved_one_f_one_b(stages, batches, chunks)));
        const double formula = bubble_share(stages, batches, chunks);
        if (batches % stages == 0) {
          CHECK(played.bubble() == Approx(formula).margin(1e-12));
        } else {
          CHECK(played.bubble() >= formula - 1e-12);
        }
        if (batches > stages) CHECK(played.bubble() <= bubble_share(stages, batches) + 1e-12);
        for (int s = 0; s < stages; ++s) {
          const int bound = (chunks - 1) * group + 2 * (stages - 1 - s) + 1;
          CHECK(played.most_in_flight[static_cast<size_t>(s)] <=
                (batches < stages ? batches * chunks : bound));
        }
      }
    }
  }
}

TEST_CASE("backward follows the loss at once, or the schedule says that it may not") {
  using Kind = PipelineAction::Kind;
  for (const std::string name : {"gpipe", "1f1b", "zbh1", "interleaved"}) {
    bool always = true;
    for (int micro_batches = 1; micro_batches <= 9; ++micro_batches) {
      const int chunks = name == "interleaved" ? 2 : 1;
      const PipelineSchedule schedule = make_schedule(name, 3, micro_batches, chunks);
      const auto& actions = schedule.stages.back();
      for (size_t i = 0; i < actions.size(); ++i) {
        if (actions[i].kind != Kind::kForward || actions[i].chunk + 1 != chunks) continue;
        const PipelineAction backward{Kind::kBackward, actions[i].micro_batch, actions[i].chunk};
        always = always && actions[i + 1] == backward;
      }
    }
    INFO(name);
    CHECK(always == backward_follows_loss(name));
  }
}

TEST_CASE("every message is sent once and received once, by neighbours of the model") {
  for (const auto& schedule :
       {gpipe(3, 4), one_f_one_b(5, 3), zero_bubble_h1(4, 6), interleaved_one_f_one_b(3, 7, 2)}) {
    const int stages = schedule.stage_count();
    size_t sent = 0, received = 0;
    for (int to = 0; to < stages; ++to) {
      std::vector<PipelineMessage> messages;
      for (int from = 0; from < stages; ++from) {
        for (const auto& action : schedule.stages[static_cast<size_t>(from)]) {
          const auto output = output_of(schedule, from, action);
          if (output && output->destination == to) messages.push_back(*output);
        }
      }
      for (const auto& action : schedule.stages[static_cast<size_t>(to)]) {
        const auto input = input_of(schedule, to, action);
        if (!input) continue;
        ++received;
        CHECK(std::count(messages.begin(), messages.end(), *input) == 1);
        CHECK((input->action == action));
      }
      sent += messages.size();
    }
    CHECK(sent == received);
    CHECK(sent == static_cast<size_t>(2 * (schedule.part_count() - 1) * schedule.micro_batches));
  }
}

TEST_CASE("uneven costs, slow messages and late receives") {
  // The slowest stage never pauses once it has begun.
  const std::vector<SimulationOptions::Cost> uneven{{1, 2}, {3, 4}, {1, 1}};
  const Simulation played = play(one_f_one_b(3, 10), {.costs = uneven});
  CHECK(played.busy == std::vector<double>{30, 70, 20});
  CHECK(played.makespan == Approx(70 + 1 + 2));
  CHECK(played.idle_share(1) == Approx(3.0 / 73));
  const Simulation slow = play(gpipe(2, 3), {.transfer = 0.5});
  CHECK(slow.makespan == Approx(3 * 3 + 3 + 2 * 0.5));
  // Blocking sends need the receive posted while the receiver is still busy.
  CHECK_THAT(refusal(one_f_one_b(2, 4), {.blocking_sends = true, .receives_ahead = 0}),
             contains("deadlocks") && contains("stage 0 in the send after forward"));
  CHECK(refusal(one_f_one_b(2, 4), {.receives_ahead = 0}) == "");
}

TEST_CASE("the simulator names what is wrong with a schedule") {
  PipelineSchedule schedule = one_f_one_b(3, 4);
  std::swap(schedule.stages[1][0], schedule.stages[1][1]);
  CHECK_THAT(refusal(schedule),
             contains("stage 1: forward of micro-batch 1") && contains("micro-batch 0 is next"));
  schedule = one_f_one_b(3, 4);
  std::swap(schedule.stages[2][0], schedule.stages[2][1]);
  CHECK_THAT(refusal(schedule),
             contains("stage 2: backward of micro-batch 0") && contains("before its forward"));
  schedule = one_f_one_b(3, 4);
  schedule.stages[0].pop_back();
  CHECK_THAT(refusal(schedule), contains("stage 0") && contains("4 forwards and 3 backwards"));
  schedule = zero_bubble_h1(3, 4);
  CHECK(schedule.stages[0].back().kind == Kind::kWeights);
  schedule.stages[0].pop_back();
  CHECK_THAT(refusal(schedule), contains("stage 0") && contains("weight gradients of 3"));
  schedule = zero_bubble_h1(3, 4);
  std::swap(schedule.stages[0][3], schedule.stages[0][4]);
  CHECK_THAT(refusal(schedule),
             contains("stage 0: weight gradients of micro-batch 0") && contains("before its back"));
  schedule = zero_bubble_h1(3, 4);
  schedule.stages[0].push_back(schedule.stages[0].back());
  CHECK_THAT(refusal(schedule),
             contains("weight gradients of micro-batch 3") && contains("micro-batch 4 is next"));
  schedule = zero_bubble_h1(3, 4);
  schedule.splits_backward = false;
  CHECK_THAT(refusal(schedule), contains("weight gradients of 4") && contains("0 are expected"));
  // Each stage is valid alone, but stage 0 waits for a gradient before it sends that gradient's
  // input.
  schedule = one_f_one_b(2, 4);
  schedule.stages[1] = gpipe(2, 4).stages[1];
  schedule.stages[0] = one_f_one_b(1, 4).stages[0];
  CHECK_THAT(refusal(schedule), contains("deadlocks") && contains("stage 0 before backward of") &&
                                    contains("stage 1 before forward of micro-batch 1"));
  CHECK_THAT(refusal(one_f_one_b(3, 4), {.costs = {{1, 1}}}), contains("1 costs for 3 stages"));
}

TEST_CASE("schedules by name") {
  CHECK((make_schedule("1f1b", 3, 2, 1).stages == one_f_one_b(3, 2).stages));
  CHECK((make_schedule("zbh1", 3, 2, 1).stages == zero_bubble_h1(3, 2).stages));
  CHECK(make_schedule("interleaved", 3, 2, 2).chunks == 2);
  CHECK_THROWS_WITH(make_schedule("pipedream", 3, 2, 1),
                    contains("gpipe, 1f1b, zbh1, interleaved"));
  CHECK_THROWS_WITH(make_schedule("zbh1", 3, 2, 2), contains("one chunk"));
  CHECK_THROWS_WITH(make_schedule("zbh1", 3, 2, 1, true), contains("all stages share"));
  CHECK_THROWS_WITH(make_schedule("gpipe", 3, 2, 2), contains("one chunk"));
  CHECK_THROWS_WITH(make_schedule("interleaved", 3, 2, 1), contains("at least 2 chunks"));
  CHECK_THROWS_WITH(gpipe(3, 0), contains("0 micro-batches"));
}
