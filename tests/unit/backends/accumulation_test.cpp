// SPDX-License-Identifier: MIT
// A gradient accumulated over several forward_backward() calls equals that of one call.
#include <ATen/ATen.h>

#include "lib/testing/fuzz.h"
#include "lib/testing/player.h"
#include "tessera/optim/adamw.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"
#include "tests/support/watchdog.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

const std::vector<std::string> kLayouts{
    "strategy=single",
    "strategy=ddp data=2",
    "strategy=ddp data=3",
    "strategy=zero1 data=2",
    "strategy=zero1 data=3 bucket_bytes=300",
    "strategy=zero2 data=2",
    "strategy=zero2 data=2 reduce_at_boundary=1",
    "strategy=zero3 data=3 persistence_threshold=20",
    "strategy=fsdp data=2 reshard_after_forward=0",
    "strategy=fsdp data=4 shard_ranks=2",
    "strategy=zero1 data=2 offload=optimizer offload_step=host",
    "strategy=zero1 data=2 offload=optimizer offload_step=both",
    "strategy=zero2 data=2 offload=optimizer offload_step=device",
    "strategy=zero3 data=2 offload=optimizer+params offload_step=host",
    "strategy=ddp data=2 gradient_dtype=fp32 reduce_dtype=bf16 bucket_bytes=300",
    "strategy=ddp pipeline=2",
    "strategy=zero1 pipeline=2 data=2 pipeline_schedule=1f1b",
    "strategy=zero3 pipeline=2 data=2 gradient_checkpointing=1",
    "strategy=ddp pipeline=2 pipeline_schedule=gpipe gradient_checkpointing=1 offload=activations",
};

// Twelve rows of a step; the number of targets differs by row.
MicroBatch rows_of_step(int step) { return toy_micro_batch({}, 12, 5, 40 + step); }

// This rank's micro-batches of one row each.
std::vector<MicroBatch> own_rows(const Player& player, int step) {
  const int64_t count = 12 / player.data_ranks();
  std::vector<MicroBatch> mine;
  for (int64_t i = 0; i < count; ++i) {
    mine.push_back(rows_of(rows_of_step(step), player.data_rank() * count + i, 1));
  }
  return mine;
}

struct Seen {
  std::vector<double> losses, norms;
  Named gradients, parameters;
};

// Three steps; calls[i]: forward_backward() calls of step i.
Seen train(const std::string& line, const std::vector<int>& calls) {
  const test::Watchdog watchdog(line, std::chrono::seconds(30));
  const FuzzCase layout = parse_case(line);
  Seen seen;
  play({.model = toy_language_model(),
        .mesh = layout.mesh,
        .parallel = layout.parallel,
        .optimizer = make_adamw({.weight_decay = 0.1})},
       [&](Player& player) {
         const StrategyMemory before = player.strategy().memory();
         for (int step = 0; step < 3; ++step) {
           const StepRecord made =
               player.train(own_rows(player, step), {.max_norm = step == 1 ? 0.1 : 0,
                                                     .calls = calls[static_cast<size_t>(step)],
                                                     .visits = true});
           if (player.rank() != 0) continue;
           seen.losses.push_back(made.loss);
           seen.norms.push_back(made.norm);
           seen.gradients = made.gradients;
           seen.parameters = made.parameters;
         }
         const StrategyMemory after = player.strategy().memory();
         test::require(before.gradient_bytes == after.gradient_bytes &&
                           before.buffer_bytes == after.buffer_bytes,
                       "accumulation takes no memory");
       });
  return seen;
}

}  // namespace

TEST_CASE("calls that accumulate have the gradient of one call, under every layout") {
  const Seen expected = train("strategy=single", {1, 1, 1});
  for (const std::string& line : kLayouts) {
    INFO(line);
    const bool rounded = line.find("reduce_dtype=bf16") != std::string::npos;
    const double tolerance = rounded ? 2e-2 : 1e-5;
    const Seen seen = train(line, {2, 3, 1});
    CHECK(difference(seen.losses, expected.losses, tolerance) == "");
    CHECK(difference(seen.norms, expected.norms, tolerance) == "");
    CHECK(difference(seen.gradients, expected.gradients, rounded ? 5e-2 : 1e-5, 1e-4) == "");
    CHECK(difference(seen.parameters, expected.parameters, rounded ? 2e-2 : 1e-5) == "");
  }
}

TEST_CASE("a gradient that was scaled or looked at between calls adds up as it is") {
  for (const std::string& line : kLayouts) {
    if (line.find("bf16") != std::string::npos) continue;
    INFO(line);
    const test::Watchdog watchdog(line, std::chrono::seconds(30));
    const FuzzCase layout = parse_case(line);
    play(
        {.model = toy_language_model(), .mesh = layout.mesh, .parallel = layout.parallel},
        [&](Player& player) {
          Strategy& s = player.strategy();
          const std::vector<MicroBatch> rows = own_rows(player, 0);
          const std::span all(rows);
          s.forward_backward(all);
          const Named whole = gradients_of(s);
          s.optimizer_step(0.1, at::ones({}));
          // Halves the gradient after the first half of the micro-batches.
          const size_t half = all.size() / 2;
          const double first =
              s.forward_backward(all.first(half), {.accumulate = true}).target_count.item<double>();
          const Named before = gradients_of(s);
          s.scale_gradients(at::full({}, 0.5F));
          s.for_each_gradient([](const GradientPiece&) {});
          const double second = s.forward_backward(all.subspan(half), {.accumulate = true})
                                    .target_count.item<double>();
          const Named after = gradients_of(s);
          Named expected;
          for (const auto& [name, value] : whole) {
            const double share = first / (first + second);
            expected[name] = value - before.at(name) * (0.5 * share);
          }
          test::require(difference(after, expected, 1e-5, 1e-4) == "",
                        "half of the first: ", difference(after, expected, 1e-5, 1e-4));
          s.optimizer_step(0.1, at::ones({}));
        });
  }
}

TEST_CASE("accumulation that cannot be is refused on all ranks") {
  for (const std::string line : {"strategy=ddp data=2", "strategy=zero3 data=2"}) {
    INFO(line);
    const test::Watchdog watchdog(line, std::chrono::seconds(30));
    const FuzzCase layout = parse_case(line);
    play({.model = toy_language_model(), .mesh = layout.mesh, .parallel = layout.parallel},
         [&](Player& player) {
           Strategy& s = player.strategy();
           const std::vector<MicroBatch> rows = own_rows(player, 0);
           const auto refused = [&](const std::string& says, const std::function<void()>& call) {
             const std::string said = test::require_error(ErrorCode::kInvalidArgument, call, says);
             test::require(said.find(says) != std::string::npos, "it says: ", said);
           };
           refused("a step without micro-batches",
                   [&] { s.forward_backward({}, {.accumulate = true}); });
           refused("needs a gradient, and there is none", [&] { s.optimizer_step(0.1); });
           s.forward_backward(rows, {.accumulate = true});
           refused("would replace the gradient", [&] { s.forward_backward(rows); });
           refused("or accumulates", [&] {
             s.optimizer_step(0.1);
             s.forward_backward(rows, {.accumulate = player.rank() == 0});
           });
           // A failing call also discards the gradient of earlier calls.
           s.forward_backward(rows, {.accumulate = true});
           refused("ranks differ in how many micro-batches", [&] {
             s.forward_backward(std::span(rows).first(player.rank() == 0 ? 1 : 2),
                                {.accumulate = true});
           });
           refused("needs a gradient, and there is none", [&] { s.optimizer_step(0.1); });
           refused("are lost with it", [&] { s.forward_backward(rows, {.accumulate = true}); });
           s.forward_backward(rows);
           s.optimizer_step(0.1);
         });
  }
}
