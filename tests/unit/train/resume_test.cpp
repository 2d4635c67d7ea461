// SPDX-License-Identifier: MIT
// A run stopped at any step and resumed in new objects equals the uninterrupted run.
#include <ATen/ATen.h>

#include <filesystem>
#include <limits>

#include "lib/testing/player.h"
#include "lib/testing/whole_state.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checkpoint_writer.h"
#include "tessera/data/batch_stream.h"
#include "tessera/optim/adamw.h"
#include "tessera/train/trainer.h"
#include "tests/support/messages.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kSteps = 9, kRows = 20;  // 5 steps an epoch

TokenTable rows() {
  Dataset dataset;
  for (int32_t i = 0; i < kRows; ++i) {
    std::vector<int32_t> ids;
    for (int32_t s = 0; s < 5; ++s) ids.push_back((7 * i + 3 * s + i * s) % 31);
    dataset.examples.push_back({ids, ids, {}});
  }
  return dataset;
}

// Saved parts of a stopped run. Ranks share the strategy's state; the rest is equal on all.
struct Stopped {
  WholeState strategy;
  std::string trainer;  // JSON
  DataLoaderState data;
};

struct Seen {
  std::vector<StepReport> reports;
  Named parameters;
};

// Two ranks. stop_at: stops there and saves the state in *stopped. from: resumes from it.
Seen train(const TrainerOptions& options, at::ScalarType dtype, int64_t stop_at, Stopped* stopped,
           const Stopped* from) {
  Seen seen;
  play(
      {toy_language_model(), {.data = 2}, {.strategy = "zero3", .precision = {.parameter = dtype}}},
      [&](Player& player) {
        Strategy& strategy = player.strategy();
        Trainer trainer(strategy, options);
        DataLoader loader(rows(),
                          {.micro_batch_size = 2, .data_rank = player.rank(), .data_size = 2});
        if (from != nullptr) {
          from->strategy.give(strategy.state());
          strategy.state_restored();
          trainer.restore(TrainerState::from_json(Json::parse(from->trainer, {}, "trainer")));
          loader.restore(from->data);
        }
        BatchStream batches(loader, at::kCPU, /*ahead=*/3);
        trainer.fit([&] { return batches.next(); },
                    [&](const StepReport& report) {
                      if (player.rank() == 0) seen.reports.push_back(report);
                    },
                    [&](int64_t step) {
                      trainer.observe(1);  // never better
                      if (step != stop_at) return true;
                      stopped->strategy.take(strategy.state());
                      const std::string state = trainer.state().to_json();
                      if (player.rank() == 0) {
                        stopped->trainer = state;
                        stopped->data = batches.state();
                      }
                      return false;
                    });
        const Named values = parameters_of(strategy);
        if (player.rank() == 0) seen.parameters = values;
      });
  return seen;
}

void check_stops(const TrainerOptions& options, at::ScalarType dtype) {
  const Seen whole = train(options, dtype, 0, nullptr, nullptr);
  REQUIRE(whole.reports.size() == kSteps);
  for (int64_t stop = 1; stop < kSteps; ++stop) {
    INFO("stopped after step " << stop);
    Stopped stopped;
    Seen seen = train(options, dtype, stop, &stopped, nullptr);
    REQUIRE(seen.reports.size() == static_cast<size_t>(stop));
    const Seen rest = train(options, dtype, 0, nullptr, &stopped);
    seen.reports.insert(seen.reports.end(), rest.reports.begin(), rest.reports.end());
    REQUIRE(seen.reports.size() == kSteps);
    for (size_t i = 0; i < seen.reports.size(); ++i) {
      const StepReport &a = seen.reports[i], &b = whole.reports[i];
      INFO("step " << b.step);
      CHECK(a.step == b.step);
      CHECK(a.loss == b.loss);
      CHECK((a.grad_norm == b.grad_norm || (a.skipped && b.skipped)));
      CHECK(a.learning_rate == b.learning_rate);
      CHECK(a.loss_scale == b.loss_scale);
      CHECK(a.skipped == b.skipped);
    }
    for (const auto& [name, value] : whole.parameters) {
      CHECK_NOTHROW(test::require_bit_equal(rest.parameters.at(name), value, name));
    }
  }
}

}  // namespace

TEST_CASE("resumed at any step: skipped steps, growing loss scales and the schedule in fp16") {
  TrainerOptions options{.max_steps = kSteps};
  options.schedule = {.peak = 1e-2, .warmup_steps = 2, .total_steps = kSteps};
  options.loss_scaler = {.enabled = true, .initial_scale = 0x1p18, .growth_interval = 2};
  check_stops(options, at::kHalf);
  const Seen seen = train(options, at::kHalf, 0, nullptr, nullptr);
  int64_t skipped = 0;
  for (const StepReport& report : seen.reports) skipped += report.skipped ? 1 : 0;
  CHECK(skipped >= 2);
  CHECK(skipped <= kSteps - 4);
}

TEST_CASE("resumed at any step: the rate of a plateau") {
  TrainerOptions options{.max_steps = kSteps};
  options.schedule = {.kind = LrScheduleKind::kReduceOnPlateau, .peak = 5e-2};
  options.schedule.options = {.factor = 0.5, .patience = 0, .cooldown = 1};
  check_stops(options, at::kFloat);
  const Seen seen = train(options, at::kFloat, 0, nullptr, nullptr);
  CHECK(seen.reports.back().learning_rate < seen.reports.front().learning_rate);
}

// The loop of docs/guides/checkpoints.md.
TEST_CASE("a user's own loop saves, and goes on from the newest checkpoint") {
  const TempDir folder;
  const auto train_to = [&](const std::string& strategy_name, int64_t save_at) {
    Named parameters;
    play({toy_language_model(), {.data = 2}, {.strategy = strategy_name}}, [&](Player& player) {
      Strategy& strategy = player.strategy();
      Trainer trainer(strategy, {.max_steps = kSteps});
      DataLoader loader(rows(),
                        {.micro_batch_size = 2, .data_rank = player.rank(), .data_size = 2});
      const FoundCheckpoint found = find_checkpoint(player.world(), folder.path("run"));
      if (!found.path.empty()) {
        const Checkpoint checkpoint = open_checkpoint(player.world(), found.path);
        load_checkpoint(player.world(), checkpoint, strategy.state());
        strategy.state_restored();
        trainer.restore(TrainerState::from_json(Json::parse(checkpoint.run(), {}, found.path)));
        loader.restore(
            {.epoch = trainer.state().steps / 5, .consumed = 4 * (trainer.state().steps % 5)});
      }
      CheckpointWriter writer(player.world(), folder.path("run"));
      trainer.fit([&] { return loader.next(); }, [](const StepReport&) {},
                  [&](int64_t step) {
                    if (step == save_at) {
                      writer.save(step, strategy.state(), trainer.state().to_json());
                    }
                    return true;
                  });
      const Named values = parameters_of(strategy);
      if (player.rank() == 0) parameters = values;
    });
    return parameters;
  };
  const auto expected = train_to("zero2", 7);
  CHECK(std::filesystem::exists(folder.path("run/checkpoint-7/manifest.json")));
  for (const auto& [name, value] : train_to("zero2", 0)) {
    CHECK_NOTHROW(test::require_bit_equal(value, expected.at(name), name));
  }
  for (const auto& [name, value] : train_to("fsdp", 0)) {
    INFO(name);
    CHECK(at::allclose(value, expected.at(name), 1e-5, 1e-6));
  }
}

TEST_CASE("a trainer's state is one line of JSON, and what is none is refused") {
  TrainerState state{.steps = 7, .updates = 5, .skipped_in_a_row = 1};
  state.loss_scaler = LossScalerState{.scale = 0x1p63, .good_steps = 3};
  state.plateau = PlateauRate::State{.rate = 0.1, .bad = 2, .cooldown_left = 1};
  const auto read = [](const std::string& text) {
    return TrainerState::from_json(Json::parse(text, {}, "state"));
  };
  CHECK(read(state.to_json()) == state);
  state.plateau->best = 2.0 / 3;
  CHECK(read(state.to_json()) == state);
  CHECK(read(TrainerState{}.to_json()) == TrainerState{});
  CHECK(error_of(ErrorCode::kDataLoss, [&] {
          read("{\"steps\":1,\"updates\":1}");
        }).find("skipped_in_a_row") != std::string::npos);
  CHECK(error_of(ErrorCode::kDataLoss, [&] {
          read("{\"steps\":-1,\"updates\":1,\"skipped_in_a_row\":0}");
        }).find("steps") != std::string::npos);
}
