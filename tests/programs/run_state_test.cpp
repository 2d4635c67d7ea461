// SPDX-License-Identifier: MIT
#include "lib/run/run_state.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "lib/run/run_checkpoints.h"
#include "tessera/checkpoint/checkpoint_writer.h"
#include "tessera/core/error.h"
#include "tests/support/ranks.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::programs;

namespace {

RunState state() { return {.settings = "{}", .model = "{}"}; }

}  // namespace

TEST_CASE("run state: the best evaluation comes back, and where there is none it is absent") {
  RunState run = state();
  CHECK(run.to_json().find("best") == std::string::npos);
  CHECK_FALSE(RunState::from_json(run.to_json(), "test").best);
  run.best = {4, 1.25};
  const RunState back = RunState::from_json(run.to_json(), "test");
  REQUIRE(back.best);
  CHECK(back.best->step == 4);
  CHECK(back.best->metric == 1.25);
}

TEST_CASE("run state: an evaluation that was no number, saved as null before, is no best one") {
  RunState run = state();
  run.best = {1, 0.5};
  std::string text = run.to_json();
  const size_t at = text.find("\"metric\":0.5");
  REQUIRE(at != std::string::npos);
  text.replace(at, 12, "\"metric\":null");
  CHECK_FALSE(RunState::from_json(text, "test").best);
}

TEST_CASE("run state: an evaluation that is no number is never the best, and never stays it") {
  const auto of = [](double metric) { return RunState::Best{1, metric}; };
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (const bool less : {true, false}) {
    CHECK(is_better(of(2), std::nullopt, less));
    CHECK(is_better(of(1), of(2), less) == less);
    CHECK(is_better(of(2), of(1), less) != less);
    CHECK_FALSE(is_better(of(1), of(1), less));
    for (const double bad : {nan, infinity, -infinity}) {
      CHECK_FALSE(is_better(of(bad), std::nullopt, less));
      CHECK_FALSE(is_better(of(bad), of(1), less));
      CHECK(is_better(of(1), of(bad), less));
    }
  }
}

TEST_CASE("run state: the best checkpoint is the run's own, by its id, step and metric") {
  RunState run = state();
  run.trainer.steps = 4;
  run.best = {4, 1.25};
  run.id = "abc";
  const RunState back = RunState::from_json(run.to_json(), "test");
  CHECK(back.id == "abc");
  CHECK(back.is_best_of("abc", {4, 1.25}));
  CHECK_FALSE(back.is_best_of("abd", {4, 1.25}));
  CHECK_FALSE(back.is_best_of("abc", {3, 1.25}));
  CHECK_FALSE(back.is_best_of("abc", {4, 1.5}));
  run.best = {3, 1.25};  // another checkpoint was better
  CHECK_FALSE(run.is_best_of("abc", {4, 1.25}));

  // The form of earlier versions: with a path, without an id.
  std::string text = back.to_json();
  const auto replace = [&](const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
  };
  replace("\"id\":\"abc\",", "");
  replace("\"best\":{", "\"best\":{\"path\":\"out/checkpoint-4\",");
  const RunState older = RunState::from_json(text, "test");
  CHECK(older.is_best_of("abc", {4, 1.25}));
  CHECK_FALSE(older.is_best_of("abc", {4, 1.5}));
}

TEST_CASE("run state: other rows are named; what an older checkpoint does not hold is the same") {
  const DataIdentity now{{kTrainingData, "a"}, {kTrainingRows, "b"}, {kTemplateDate, "c"}};
  const DataIdentity scores{{kValidationRows, "d"}, {kTokenizer, "e"}};
  RunState run = state();
  run.of = now;
  run.evaluation = scores;
  const RunState back = RunState::from_json(run.to_json(), "test");
  CHECK(back.other_data(now).empty());
  CHECK(back.other_evaluation(scores).empty());
  CHECK(back.other_data({{kTrainingRows, "x"}}) ==
        std::vector<std::string>{"the training rows b -> x"});
  CHECK(back.other_evaluation({{kTokenizer, "x"}}) ==
        std::vector<std::string>{"the tokenizer (XXH3) e -> x"});
  std::string older = state().to_json();
  const size_t at = older.find(R"("evaluation":{},)");
  REQUIRE(at != std::string::npos);
  older.erase(at, 16);
  const RunState old = RunState::from_json(older, "test");
  CHECK(old.other_evaluation(scores).empty());
  CHECK(old.other_data(now) == std::vector<std::string>{concat(kTrainingData, "  -> a")});
}

TEST_CASE("run state: settings that differ are named, but not that the run resumes") {
  RunState run = state();
  run.settings = R"({"max_steps": {"value": 20}, "resume_from_checkpoint": {"value": "none"}})";
  CHECK(run.other_settings(
            R"({"max_steps": {"value": 40}, "resume_from_checkpoint": {"value": "auto"}})") ==
        std::vector<std::string>{"--max_steps 20 -> 40"});
}

TEST_CASE("a run with fp8 auto takes the layers of the checkpoint that it goes on from") {
  const TempDir folder;
  TrainOptions options;
  options.output.output_dir = folder.path("run");
  test::run_ranks(1, [&](Communicator& world) {
    const auto kept = [&](const std::string& from) {
      options.run.resume_from_checkpoint = from;
      return kept_fp8_layers(options, world);
    };
    CheckpointWriter writer(world, options.output.output_dir);
    test::require(kept("auto").empty(), "nothing was saved");
    const StateTensor one{.name = "w",
                          .kind = "parameter",
                          .slice = {.shape = {2}, .begin = 0, .end = 2},
                          .value = at::ones({2})};
    RunState run = state();
    for (const char* layers : {"", "up,down", "none"}) {
      run.fp8_layers = layers;
      writer.save(++run.trainer.steps, {one}, run.to_json());
      writer.wait();
      test::require(kept("auto") == layers, "of the newest: ", kept("auto"));
    }
    const std::string second = options.output.output_dir + "/checkpoint-2";
    test::require(kept(second) == "up,down", "of the named one: ", kept(second));
    test::require(kept(options.output.output_dir) == "none", "of a directory's newest");
    test::require(kept("none").empty(), "a new run");
  });
}
