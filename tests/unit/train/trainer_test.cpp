// SPDX-License-Identifier: MIT
#include "tessera/train/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/testing/player.h"
#include "tessera/core/error.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/sgd.h"
#include "tests/support/messages.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// A toy model whose loss is multiplied by a factor that the test changes between steps. NaN keeps
// the loss, but makes the gradient of the head's first parameter NaN.
ModelSpec scaled_model(std::shared_ptr<double> factor, const ToyConfig& config) {
  ModelSpec model = toy_language_model(config);
  auto build = model.blocks.back().build;
  model.blocks.back().build = [build, factor](const BuildContext& context) {
    class Scaled : public Block {
     public:
      Scaled(std::unique_ptr<Block> inner, std::shared_ptr<double> factor)
          : inner_(std::move(inner)), factor_(std::move(factor)) {}
      at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch,
                         const BlockContext& context) override {
        const at::Tensor loss = inner_->forward(hidden, batch, context);
        if (!std::isnan(*factor_)) return loss * *factor_;
        const at::Tensor weight = inner_->parameters().front().tensor;
        return loss + (weight - weight.detach()).abs().sum().sqrt();  // 0, with slope 0 * infinity
      }
      std::vector<Parameter> parameters() override { return inner_->parameters(); }

     private:
      std::unique_ptr<Block> inner_;
      std::shared_ptr<double> factor_;
    };
    return std::make_unique<Scaled>(build(context), factor);
  };
  return model;
}

struct Run {
  std::vector<StepReport> reports;
  Named parameters;
};

// factors[k] multiplies the loss of step k on rank 0 only.
Run train(Communicator& comm, const std::vector<double>& factors, const TrainerOptions& options,
          at::ScalarType dtype = at::kFloat, const OptimizerFactory& optimizer = make_adamw({}),
          const std::function<void(const StepReport&)>& on_step = {}) {
  auto factor = std::make_shared<double>(1.0);
  const bool apart = std::ranges::any_of(factors, [](double x) { return std::isnan(x); });
  const Player player(comm, {scaled_model(factor, {.tied = !apart}),
                             {.data = comm.size()},
                             {.strategy = "zero2", .precision = {.parameter = dtype}},
                             optimizer});
  Trainer trainer(player.strategy(), options);
  size_t step = 0;
  Run run;
  trainer.fit(
      [&]() -> std::vector<MicroBatch> {
        if (step == factors.size()) return {};
        *factor = comm.rank() == 0 ? factors[step] : 1.0;
        return {toy_micro_batch({}, 4, 5, 50 + step++)};
      },
      [&](const StepReport& report) {
        run.reports.push_back(report);
        if (on_step) on_step(report);
      });
  run.parameters = parameters_of(player.strategy());
  return run;
}

constexpr double kInf = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE(
    "an overflow on one rank skips the step on all, and neither Adam nor the schedule moves") {
  TrainerOptions options;
  options.schedule = {.kind = LrScheduleKind::kLinear, .peak = 1e-2, .total_steps = 10};
  options.loss_scaler = {.enabled = true, .initial_scale = 64, .growth_interval = 2};
  std::vector<Run> runs(2);
  test::run_ranks(2, [&](Communicator& comm) {
    runs[static_cast<size_t>(comm.rank())] = train(comm, {1, kInf, 1, 1}, options);
  });
  for (const Run& run : runs) {
    REQUIRE(run.reports.size() == 4);
    CHECK_FALSE(run.reports[0].skipped);
    CHECK(run.reports[1].skipped);
    CHECK_FALSE(run.reports[2].skipped);
    CHECK(run.reports[1].learning_rate == run.reports[2].learning_rate);
    CHECK(run.reports[2].learning_rate > run.reports[3].learning_rate);
    CHECK(run.reports[0].loss_scale == 64);
    CHECK(run.reports[2].loss_scale == 32);
    CHECK(std::isfinite(run.reports[3].loss));
    for (const auto& [name, value] : run.parameters) {
      CHECK(value.isfinite().all().item<bool>());
      CHECK(value.equal(runs[0].parameters.at(name)));
    }
  }
  // The reported norm has no loss scale.
  options.loss_scaler = {};
  Run plain;
  test::run_ranks(1, [&](Communicator& comm) { plain = train(comm, {1}, options); });
  Run scaled;
  options.loss_scaler = {.enabled = true, .initial_scale = 1024};
  test::run_ranks(1, [&](Communicator& comm) { scaled = train(comm, {1}, options); });
  CHECK(scaled.reports[0].grad_norm == Approx(plain.reports[0].grad_norm).epsilon(1e-5));
}

TEST_CASE("a plateau of what the trainer is told lowers the rate of the steps after it") {
  TrainerOptions options;
  options.schedule = {.kind = LrScheduleKind::kReduceOnPlateau, .peak = 1e-2};
  options.schedule.options = {.factor = 0.5, .patience = 0};
  play({toy_language_model(), {.data = 1}, {.strategy = "single"}}, [&](Player& player) {
    Strategy& strategy = player.strategy();
    Trainer trainer(strategy, options);
    std::vector<double> rates;
    for (const double metric : {3.0, 2.0, 2.0, 2.0}) {
      int64_t left = 1;
      trainer.fit(
          [&]() -> std::vector<MicroBatch> {
            if (left-- == 0) return {};
            return {toy_micro_batch({}, 4, 5, 50)};
          },
          [&](const StepReport& report) { rates.push_back(report.learning_rate); });
      trainer.observe(metric);
    }
    CHECK(rates == std::vector<double>{1e-2, 1e-2, 1e-2, 5e-3});
  });
}

// A factor of 2^-22 scales gradients like a mean over 4M targets. Powers of two are exact, so a
// correspondingly larger loss scale must give exactly the plain loss's gradients.
TEST_CASE(
    "fp16: the scale follows a loss of 4M targets to where no digit of the gradients is lost") {
  TrainerOptions options{.max_steps = 20};
  options.loss_scaler = {.enabled = true, .initial_scale = 0x1p14, .growth_interval = 1000};
  Run plain, small;
  test::run_ranks(1, [&](Communicator& comm) { plain = train(comm, {1}, options, at::kHalf); });
  options.loss_scaler = {.enabled = true, .initial_scale = 0x1p24, .growth_interval = 1};
  options.schedule = {.kind = LrScheduleKind::kConstant, .peak = 0};
  test::run_ranks(1, [&](Communicator& comm) {
    small = train(comm, std::vector<double>(13, 0x1p-22), options, at::kHalf);
  });
  for (size_t step = 0; step < small.reports.size(); ++step) {
    CHECK_FALSE(small.reports[step].skipped);
    CHECK(small.reports[step].loss_scale == std::exp2(24 + static_cast<double>(step)));
  }
  // Step k has its own batch: the first one again, at the far end's scale.
  options.loss_scaler = {.enabled = true, .initial_scale = 0x1p36};
  test::run_ranks(1,
                  [&](Communicator& comm) { small = train(comm, {0x1p-22}, options, at::kHalf); });
  CHECK(small.reports[0].grad_norm == plain.reports[0].grad_norm * 0x1p-22);
}

TEST_CASE("fp32: the largest loss scale changes no digit, and a norm it takes out of range skips") {
  TrainerOptions options;
  options.schedule = {.kind = LrScheduleKind::kConstant, .peak = 1e-2};
  std::vector<Run> runs;
  const std::vector<double> factors{1.0 / 64, 1.0 / 64, 1,
                                    1.0 / 64};  // the third has a norm above 2
  for (double scale : {1.0, kLargestLossScale}) {
    options.loss_scaler = {.enabled = true, .initial_scale = scale};
    test::run_ranks(1, [&](Communicator& comm) { runs.push_back(train(comm, factors, options)); });
  }
  for (size_t step = 0; step < 2; ++step) {
    CHECK_FALSE(runs[1].reports[step].skipped);
    CHECK(runs[1].reports[step].loss == runs[0].reports[step].loss);
    CHECK(runs[1].reports[step].grad_norm == runs[0].reports[step].grad_norm);
  }
  CHECK(runs[0].reports[2].grad_norm > 2);
  CHECK(runs[1].reports[2].skipped);
  CHECK(runs[1].reports[3].loss_scale == kLargestLossScale / 2);
  CHECK_FALSE(runs[1].reports[3].skipped);
}

TEST_CASE("gradients are divided by the scale they were multiplied with, while it grows") {
  TrainerOptions options;
  options.schedule = {.kind = LrScheduleKind::kConstant, .peak = 0.1};
  const OptimizerFactory sgd = make_sgd({.momentum = 0});  // uses the gradient unchanged
  Run plain, scaled;
  test::run_ranks(1, [&](Communicator& comm) {
    plain = train(comm, {1, 1, 1}, options, at::kFloat, sgd);
  });
  options.loss_scaler = {.enabled = true, .initial_scale = 64, .growth_interval = 1};
  test::run_ranks(1, [&](Communicator& comm) {
    scaled = train(comm, {1, 1, 1}, options, at::kFloat, sgd);
  });
  for (size_t i = 0; i < 3; ++i) CHECK(scaled.reports.at(i).loss_scale == 64 << i);
  for (const auto& [name, value] : plain.parameters) {
    INFO(name);
    CHECK(at::allclose(scaled.parameters.at(name), value, 1e-6, 1e-7));
  }
}

TEST_CASE("training stops by name at the first norm that is not finite, with a loss scale later") {
  struct Case {
    TrainerOptions options;
    std::vector<double> factors;
    int64_t last;  // step in the report
    std::string said;
  };
  TrainerOptions plain{.max_steps = 20};
  TrainerOptions patient = plain, scaled = plain;
  patient.max_nonfinite_steps = 3;
  scaled.loss_scaler = {.enabled = true, .initial_scale = 64};
  scaled.max_overflow_steps = 2;
  const std::vector<Case> cases{
      {plain, {1, kInf, 1}, 2, "the gradient norm of step 2 was not finite; first"},
      {plain, {1, 1, kInf}, 3, "of step 3"},  // nothing follows
      {patient,
       {1, kInf, kInf, 1, kInf, kInf, kInf, 1},
       7,
       "of step 7 was not finite, the last of 3"},
      {scaled, {kInf, 1, kInf, kInf, 1}, 4, "of step 4 was not finite, the last of 2 in a row"}};
  for (const Case& given : cases) {
    INFO(given.said);
    std::vector<int64_t> reported(2);
    const std::string message = error_of(ErrorCode::kNumerics, [&] {
      test::run_ranks(2, [&](Communicator& comm) {
        const auto rank = static_cast<size_t>(comm.rank());
        train(comm, given.factors, given.options, at::kFloat, make_adamw({}),
              [&](const StepReport& report) { reported[rank] = report.step; });
      });
    });
    CHECK_THAT(message, test::contains(given.said));
    CHECK(reported == std::vector<int64_t>{given.last, given.last});
  }
  // The message names the first non-finite tensor, not the model's first.
  for (const int ranks : {1, 2}) {
    const std::string message = error_of(ErrorCode::kNumerics, [&] {
      test::run_ranks(ranks, [&](Communicator& comm) { train(comm, {1, std::nan("")}, plain); });
    });
    CHECK_THAT(message, test::contains("first non-finite tensor: head.weight"));
  }
  // As many, but not consecutive, or one fewer.
  test::run_ranks(1, [&](Communicator& comm) {
    train(comm, {kInf, kInf, 1, kInf, kInf}, patient);
  });
  test::run_ranks(1, [&](Communicator& comm) { train(comm, {kInf, 1, kInf, 1}, scaled); });
  CHECK(error_of(ErrorCode::kInvalidArgument, [&] {
          plain.max_nonfinite_steps = 0;
          test::run_ranks(1, [&](Communicator& comm) { train(comm, {1}, plain); });
        }).find("max_nonfinite_steps is 0") != std::string::npos);
}

TEST_CASE("max_steps counts over several calls of fit") {
  play({toy_language_model()}, [&](Player& player) {
    Strategy& strategy = player.strategy();
    Trainer trainer(strategy, {.max_steps = 3});
    std::vector<int64_t> steps;
    auto source = [calls = 0]() mutable -> std::vector<MicroBatch> {
      if (calls++ % 2 == 1 && calls > 2) return {};
      return {toy_micro_batch({}, 2, 3, 1), toy_micro_batch({}, 2, 3, 2)};
    };
    const auto record = [&](const StepReport& report) {
      steps.push_back(report.step);
      test::require(report.samples == 4 && report.tokens == 12, "counts of two micro-batches");
    };
    trainer.fit(source, record);
    trainer.fit(source, record);
    test::require(steps == std::vector<int64_t>{1, 2, 3}, "steps 1, 2, 3 in order");
  });
}

TEST_CASE("an evaluation's loss is the mean over targets, however they lie in batches") {
  const std::vector<MicroBatch> rows{toy_micro_batch({}, 4, 5, 50), toy_micro_batch({}, 1, 2, 51)};
  play({toy_language_model(), {}, {.strategy = "single"}}, [&](Player& player) {
    Strategy& strategy = player.strategy();
    Trainer trainer(strategy, {});
    const auto evaluate = [&](std::vector<std::vector<MicroBatch>> batches) {
      return trainer.evaluate([&, next = size_t{0}]() mutable {
        return next < batches.size() ? batches[next++] : std::vector<MicroBatch>{};
      });
    };
    const EvalReport first = evaluate({{rows[0]}}), last = evaluate({{rows[1]}});
    const EvalReport apart = evaluate({{rows[0]}, {rows[1]}}), together = evaluate({rows});
    REQUIRE(std::abs(first.loss - last.loss) > 0.01);
    CHECK(apart.loss == Approx(together.loss).epsilon(1e-6));
    const double sum = first.loss * first.target_count + last.loss * last.target_count;
    CHECK(apart.loss == Approx(sum / apart.target_count).epsilon(1e-6));
    CHECK(apart.target_count == first.target_count + last.target_count);
  });
}

TEST_CASE("before every update its observer is called") {
  play({toy_language_model(), {.data = 2}, {.strategy = "zero2"}}, [](Player& player) {
    Strategy& strategy = player.strategy();
    const at::Tensor value = strategy.state().front().value;
    at::Tensor before = value.clone();
    int calls = 0;
    TrainerOptions options{.max_steps = 3,
                           .schedule = {.kind = LrScheduleKind::kConstant, .peak = 1e-2}};
    options.before_update = [&] {
      ++calls;
      test::require(value.equal(before), "the step has not changed what an update changes");
    };
    Trainer trainer(strategy, options);
    const auto boundary = [&](int64_t step) {
      test::require(calls == step, "once a step");
      strategy.state();  // waits for the update
      test::require(!value.equal(before), "the update comes behind it");
      before.copy_(value);
      return true;
    };
    const auto source = [] { return std::vector<MicroBatch>{toy_micro_batch({}, 2, 3, 1)}; };
    trainer.fit(
        source, [](const StepReport&) {}, boundary);
  });
}

TEST_CASE("on the CPU a step's time is that of its own tokens") {
  play({toy_language_model()}, [](Player& player) {
    Strategy& strategy = player.strategy();
    Trainer trainer(strategy, {.max_steps = 12});
    const MicroBatch large = toy_micro_batch({}, 256, 64, 1), small = toy_micro_batch({}, 1, 2, 2);
    const auto source = [&, step = 0]() mutable {
      return std::vector<MicroBatch>{step++ % 2 == 0 ? large : small};
    };
    double of_large = 0, of_small = 0;
    trainer.fit(source, [&](const StepReport& report) {
      (report.tokens == large.token_count ? of_large : of_small) += report.step_time_s;
    });
    test::require(of_large > 2 * of_small,
                  concat("large steps took ", of_large, " s, small ones ", of_small, " s"));
  });
}
