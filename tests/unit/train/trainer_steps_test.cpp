// SPDX-License-Identifier: MIT
// Steps that throw, and schedules that end before the run.
#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "lib/testing/player.h"
#include "tessera/backends/data_parallel/ddp.h"
#include "tessera/core/error.h"
#include "tessera/optim/adamw.h"
#include "tessera/train/trainer.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

class Throwing : public Block {
 public:
  Throwing(std::unique_ptr<Block> inner, std::shared_ptr<bool> throws)
      : inner_(std::move(inner)), throws_(std::move(throws)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch,
                     const BlockContext& context) override {
    if (*throws_) throw std::runtime_error("planted");
    return inner_->forward(hidden, batch, context);
  }
  std::vector<Parameter> parameters() override { return inner_->parameters(); }

 private:
  std::unique_ptr<Block> inner_;
  std::shared_ptr<bool> throws_;
};

// A toy model whose loss throws on demand.
ModelSpec throwing_model(std::shared_ptr<bool> throws) {
  ModelSpec model = toy_language_model();
  model.blocks.back().build = [build = model.blocks.back().build,
                               throws](const BuildContext& context) {
    return std::make_unique<Throwing>(build(context), throws);
  };
  return model;
}

// Captures standard error in its scope.
class StandardError {
 public:
  StandardError() : saved_(dup(STDERR_FILENO)), file_(std::tmpfile()) {
    dup2(fileno(file_), STDERR_FILENO);
  }
  ~StandardError() {
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    std::fclose(file_);
  }
  std::string text() const {
    std::string text(size_t{1} << 14, '\0');
    const ssize_t size = pread(fileno(file_), text.data(), text.size(), 0);
    text.resize(static_cast<size_t>(std::max<ssize_t>(0, size)));
    return text;
  }

 private:
  int saved_;
  std::FILE* file_;
};

// On demand, communication of its ranks fails while results stay finite.
class CutOff : public Ddp {
 public:
  CutOff(const DeviceMesh& mesh, std::shared_ptr<bool> cut)
      : Ddp({.strategy = "ddp"}, mesh.axis(Axis::kData)), cut_(std::move(cut)) {}
  void require_connected() const override {
    check(!*cut_, ErrorCode::kUnavailable, "rank 1 does not answer");
  }

 private:
  std::shared_ptr<bool> cut_;
};

}  // namespace

TEST_CASE("numbers of a step or an evaluation that ended without its peers are not reported") {
  test::run_ranks(1, [](Communicator& comm) {
    const DeviceMesh mesh(comm, {});
    auto cut = std::make_shared<bool>(false);
    CutOff strategy(mesh, cut);
    strategy.attach(toy_language_model(), {.seed = 3}, make_adamw({}));
    Trainer trainer(strategy, {.max_steps = 4});
    int64_t given = 0, reported = 0;
    const BatchSource source = [&]() -> std::vector<MicroBatch> {
      *cut = ++given == 3;
      return {toy_micro_batch({}, 4, 5, static_cast<uint64_t>(given))};
    };
    const auto says_so = [&](const auto& fn) {
      try {
        fn();
      } catch (const Error& error) {
        return error.code() == ErrorCode::kUnavailable;
      }
      return false;
    };
    test::require(says_so([&] { trainer.fit(source, [&](const StepReport&) { ++reported; }); }),
                  "fit() goes on without its peers");
    test::require(reported == 2, reported, " steps are reported, of which 2 were whole");
    given = 2;
    test::require(says_so([&] { trainer.evaluate(source); }), "evaluate() gives a result");
  });
}

TEST_CASE("a step that throws on all ranks counts as not made, and training goes on") {
  for (const std::string name : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    INFO(name);
    std::vector<std::pair<std::vector<StepReport>, Named>> runs(2);
    for (const bool fails : {false, true}) {
      test::run_ranks(2, [&](Communicator& comm) {
        auto throws = std::make_shared<bool>(false);
        const Player player(comm, {throwing_model(throws), {.data = 2}, {.strategy = name}});
        Trainer trainer(player.strategy(), {.max_steps = 4});
        uint64_t step = 0;
        std::vector<StepReport> reports;
        const auto train = [&](uint64_t end) {
          trainer.fit(
              [&]() -> std::vector<MicroBatch> {
                if (step == end) return {};
                return {toy_micro_batch({}, 4, 5, 50 + step++)};
              },
              [&](const StepReport& report) { reports.push_back(report); });
        };
        train(2);
        if (fails) {
          *throws = true;
          bool thrown = false;
          try {
            train(3);
          } catch (const std::runtime_error&) {
            thrown = true;
          }
          test::require(thrown, "the step throws");
          *throws = false;
          step = 2;
        }
        train(10);
        const Named parameters = parameters_of(player.strategy());
        if (comm.rank() == 0) runs[fails] = {reports, parameters};
      });
    }
    const auto& [expected, parameters] = runs[0];
    REQUIRE(expected.size() == 4);
    REQUIRE(runs[1].first.size() == 4);
    for (size_t i = 0; i < 4; ++i) {
      const StepReport& report = runs[1].first[i];
      CHECK(report.step == static_cast<int64_t>(i) + 1);
      CHECK(report.loss == expected[i].loss);
      CHECK(report.grad_norm == expected[i].grad_norm);
      CHECK(report.learning_rate == expected[i].learning_rate);
    }
    for (const auto& [parameter, value] : parameters) {
      CHECK(runs[1].second.at(parameter).equal(value));
    }
  }
}

TEST_CASE("a schedule that ends before the run is said once") {
  const auto said = [](const TrainerOptions& options, size_t steps) {
    const StandardError captured;
    play({toy_language_model(), {}, {.strategy = "single"}}, [&](Player& player) {
      Strategy& strategy = player.strategy();
      Trainer trainer(strategy, options);
      trainer.fit(
          [&]() -> std::vector<MicroBatch> {
            if (steps-- == 0) return {};
            return {toy_micro_batch({}, 2, 3, 1)};
          },
          [](const StepReport&) {});
    });
    return captured.text();
  };
  TrainerOptions options{.max_steps = 5, .schedule = {.peak = 0.1, .total_steps = 3}};
  const std::string text = said(options, 5);
  using tessera::test::contains;
  CHECK_THAT(text, contains("ends after 3 updates with a rate of 0") &&
                       contains("the run goes on to step 5"));
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  options.max_steps = 0;  // until the data end
  CHECK_THAT(said(options, 4), contains("ends after 3 updates"));
  CHECK(said(options, 3).empty());
  options.schedule.total_steps = 0;
  options.max_steps = 5;
  CHECK(said(options, 5).empty());
  options.schedule = {.kind = LrScheduleKind::kWarmupStableDecay, .peak = 0.1};
  options.schedule.options = {.num_decay_steps = 1, .num_stable_steps = 2, .min_lr_ratio = 0.5};
  CHECK_THAT(said(options, 5), contains("ends after 3 updates with a rate of 0.05"));
}
