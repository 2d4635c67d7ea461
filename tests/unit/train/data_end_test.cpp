// SPDX-License-Identifier: MIT
// Data that end earlier on some ranks than on others.
#include <ATen/ATen.h>

#include "lib/testing/player.h"
#include "tessera/core/error.h"
#include "tessera/optim/adamw.h"
#include "tessera/train/trainer.h"
#include "tests/support/messages.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"
#include "tests/support/watchdog.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

// This many batches, equal on ranks that share them.
BatchSource batches(int64_t count, int64_t first) {
  return [count, first, given = int64_t{0}]() mutable -> std::vector<MicroBatch> {
    if (given == count) return {};
    return {toy_micro_batch({}, 4, 5, static_cast<uint64_t>(first + given++))};
  };
}

// Message of each rank when rank r has counts[r] batches; "" for none.
std::vector<std::string> said(const ParallelConfig& config, const MeshExtents& extents,
                              const std::vector<int64_t>& counts, bool evaluates) {
  const test::Watchdog watchdog("data that end early", std::chrono::seconds(60));
  std::vector<std::string> all(counts.size());
  play({toy_language_model(), extents, config}, [&](Player& player) {
    Strategy& strategy = player.strategy();
    Trainer trainer(strategy, {.max_steps = 100});
    const auto rank = static_cast<size_t>(player.rank());
    const auto use = [&](int64_t count) {
      const BatchSource source = batches(count, 10 * player.data_rank());
      if (evaluates) {
        trainer.evaluate(source);
      } else {
        trainer.fit(source, [](const StepReport&) {});
      }
    };
    try {
      use(counts[rank]);
    } catch (const Error& error) {
      test::require(error.code() == ErrorCode::kDataLoss, error.what());
      all[rank] = error.what();
    }
    player.world().barrier();
    use(1);  // a step left by all ranks was not made
  });
  return all;
}

void require_all_say(const std::vector<std::string>& said, const std::string& text) {
  for (const std::string& each : said) CHECK_THAT(each, test::starts_with(text));
}

TEST_CASE("data that end early on one rank are one error on all") {
  for (const std::string strategy : {"ddp", "zero3", "fsdp"}) {
    INFO(strategy);
    require_all_say(said({.strategy = strategy}, {.data = 3}, {4, 2, 4}, /*evaluates=*/false),
                    "the data of rank 1 ended after step 2, while rank 0, 2 went on; give every "
                    "rank equally many batches");
  }
  require_all_say(said({.strategy = "ddp"}, {.data = 3}, {0, 0, 1}, /*evaluates=*/false),
                  "the data of rank 0-1 ended before the first step, while rank 2 went on");
  require_all_say(
      said({.strategy = "zero2"}, {.data = 3}, {2, 3, 1}, /*evaluates=*/true),
      "the data of rank 2 ended after batch 1 of an evaluation, while rank 0-1 went on");
}

TEST_CASE("data that end early on one stage or tensor rank are one error on all") {
  require_all_say(
      said({.strategy = "zero1"}, {.pipeline = 2, .data = 2}, {3, 3, 2, 3}, /*evaluates=*/false),
      "the data of rank 2 ended after step 2, while rank 0-1, 3 went on");
}

TEST_CASE("data that end on all ranks at once are no error") {
  for (const bool evaluates : {false, true}) {
    CHECK(said({.strategy = "zero3"}, {.data = 3}, {2, 2, 2}, evaluates) ==
          std::vector<std::string>(3));
  }
}

TEST_CASE("of many ranks all whose data have ended are named") {
  std::vector<int64_t> counts(50, 1);
  counts[0] = counts[46] = counts[47] = counts[48] = counts[49] = 0;
  require_all_say(said({.strategy = "ddp"}, {.data = 50}, counts, /*evaluates=*/false),
                  "the data of rank 0, 46-49 ended before the first step, while rank 1-45 went on");
}

}  // namespace
