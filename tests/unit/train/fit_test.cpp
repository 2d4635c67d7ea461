// SPDX-License-Identifier: MIT
// Work between the steps of Trainer::fit(): evaluations, saving, early stopping, weight averages,
// gradients by name, and callbacks that throw.
#include <ATen/ATen.h>

#include <atomic>
#include <cmath>
#include <mutex>

#include "lib/testing/fuzz.h"
#include "lib/testing/player.h"
#include "tessera/backends/gradients.h"
#include "tessera/optim/sgd.h"
#include "tessera/train/trainer.h"
#include "tests/support/messages.hpp"
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
    "strategy=zero2 data=3",
    "strategy=zero3 data=2 persistence_threshold=20",
    "strategy=fsdp data=4 shard_ranks=2",
    "strategy=zero1 data=2 offload=optimizer offload_step=host",
    "strategy=zero3 data=2 offload=optimizer+params offload_step=device",
    "strategy=zero2 data=2 dtype=bf16",
    "strategy=zero1 pipeline=2 data=2",
};

constexpr double kRate = 0.5;

std::vector<MicroBatch> own_rows(const Player& player, uint64_t seed) {
  const int64_t count = 12 / player.data_ranks();
  return {rows_of(toy_micro_batch({}, 12, 5, seed), player.data_rank() * count, count)};
}

// `count` steps, each with its own rows.
BatchSource rows_of_steps(const Player& player, int64_t count) {
  return [&player, count, step = int64_t{0}]() mutable -> std::vector<MicroBatch> {
    if (step == count) return {};
    return own_rows(player, static_cast<uint64_t>(100 + step++));
  };
}

Setup setup_of(const FuzzCase& layout) {
  return {.model = toy_language_model(),
          .mesh = layout.mesh,
          .parallel = layout.parallel,
          .optimizer = make_sgd({})};
}

void on_layouts(const PlayerScript& script) {
  for (const std::string& line : kLayouts) {
    INFO(line);
    const test::Watchdog watchdog(line, std::chrono::seconds(30));
    CHECK_NOTHROW(play(setup_of(parse_case(line)), script));
  }
}

TrainerOptions options_of(int64_t steps) {
  return {.max_steps = steps, .max_grad_norm = 0, .learning_rate = [](int64_t updates) {
            return kRate / double(1 + updates);
          }};
}

}  // namespace

TEST_CASE("any function is a schedule, and gradients are there between backward and the step") {
  on_layouts([](Player& player) {
    Trainer trainer(player.strategy(), options_of(3));
    std::vector<double> rates;
    std::vector<int64_t> steps;
    trainer.fit(rows_of_steps(player, 9),
                {.on_step =
                     [&](const StepReport& report) {
                       rates.push_back(report.learning_rate);
                       test::require(report.grad_norm < 1e-12, "a norm of ", report.grad_norm);
                     },
                 .on_gradients =
                     [&](int64_t step) {
                       steps.push_back(step);
                       player.strategy().for_each_gradient(
                           [](const GradientPiece& piece) { at::Tensor(piece.value).zero_(); });
                     }});
    test::require(rates == std::vector<double>{kRate, kRate / 2, kRate / 3},
                  "the function's rates");
    test::require(steps == std::vector<int64_t>{1, 2, 3}, "every step's gradients");
  });
}

TEST_CASE("evaluations and saves come when they are due, and after the last step") {
  on_layouts([](Player& player) {
    Trainer trainer(player.strategy(), options_of(5));
    std::string order;
    double last = 0;
    const int64_t made = trainer.fit(
        rows_of_steps(player, 9),
        {.on_step = [&](const StepReport& report) { order += concat("s", report.step); },
         .evaluate_every = 2,
         .evaluation = [&] { return rows_of_steps(player, 2); },
         .on_evaluation =
             [&](int64_t step, const EvalReport& report) {
               order += concat("e", step);
               last = report.loss;
             },
         .save_every = 3,
         .on_save = [&](int64_t step) { order += concat("w", step); }});
    test::require(made == 5, "five steps");
    test::require(order == "s1s2e2s3w3s4e4s5e5w5", order);
    test::require(last == trainer.evaluate(rows_of_steps(player, 2)).loss, "of the last weights");
  });
}

TEST_CASE("intervals count from a step, and a stop from outside saves without an evaluation") {
  on_layouts([](Player& player) {
    Trainer trainer(player.strategy(), options_of(9));
    std::string order;
    const int64_t made = trainer.fit(
        rows_of_steps(player, 9),
        {.evaluate_every = 2,
         .evaluate_from = 1,
         .evaluation = [&] { return rows_of_steps(player, 1); },
         .on_evaluation = [&](int64_t step, const EvalReport&) { order += concat("e", step); },
         .save_every = 4,
         .save_from = 1,
         .on_save = [&](int64_t step) { order += concat("w", step); },
         .stop = [](int64_t step) { return step == 6; },
         .boundary =
             [&](int64_t step) {
               test::require(trainer.latest().step == step, "the latest step's report");
               return true;
             }});
    test::require(made == 6, "six steps");
    test::require(order == "e3e5w5w6", order);
  });
}

TEST_CASE("training stops when the evaluation's loss no longer falls, and goes on counting") {
  on_layouts([](Player& player) {
    // With a learning rate of 0 the loss is constant: the first evaluation is the best, the next
    // are not.
    const TrainerOptions options{.max_steps = 20, .learning_rate = [](int64_t) { return 0.0; }};
    const FitOptions fit{.evaluate_every = 2,
                         .evaluation = [&] { return rows_of_steps(player, 1); },
                         .early_stopping = EarlyStoppingConfig{.patience = 2}};
    Trainer trainer(player.strategy(), options);
    test::require(trainer.fit(rows_of_steps(player, 100), fit) == 6, "two evaluations in vain");
    // A trainer resumed after four steps has one more evaluation to see.
    Trainer first(player.strategy(), {.max_steps = 4, .learning_rate = options.learning_rate});
    first.fit(rows_of_steps(player, 100), fit);
    const TrainerState state = first.state();
    const TrainerState read = TrainerState::from_json(Json::parse(state.to_json(), {}, "state"));
    test::require(read == state && read.early_stopping && read.early_stopping->bad == 1, "state");
    Trainer second(player.strategy(), options);
    second.restore(read);
    test::require(second.fit(rows_of_steps(player, 100), fit) == 2, "one more in vain");
  });
}

TEST_CASE("an evaluation without a target is no number, and neither stops nor slows training") {
  on_layouts([](Player& player) {
    const auto without_targets = [&]() -> BatchSource {
      return [&player, left = 1]() mutable -> std::vector<MicroBatch> {
        if (left-- == 0) return {};
        std::vector<MicroBatch> rows = own_rows(player, 7);
        rows.front().labels = at::full_like(rows.front().labels, kIgnoredLabel);
        rows.front().target_count = 0;
        return rows;
      };
    };
    TrainerOptions options{.max_steps = 6};
    options.schedule = {.kind = LrScheduleKind::kReduceOnPlateau, .peak = kRate};
    options.schedule.options.patience = 0;
    std::vector<double> rates;
    int64_t evaluations = 0;
    Trainer trainer(player.strategy(), options);
    const int64_t made = trainer.fit(
        rows_of_steps(player, 9),
        {.on_step = [&](const StepReport& report) { rates.push_back(report.learning_rate); },
         .evaluate_every = 1,
         .evaluation = without_targets,
         .on_evaluation =
             [&](int64_t, const EvalReport& report) {
               ++evaluations;
               test::require(std::isnan(report.loss) && report.target_count == 0, "a loss of ",
                             report.loss);
             },
         .early_stopping = EarlyStoppingConfig{.patience = 2}});
    test::require(made == 6 && evaluations == 6, "it goes on");
    test::require(rates == std::vector<double>(6, kRate), "with the same rate");
  });
}

TEST_CASE("the average of the weights is that of every step's weights, whatever keeps its shards") {
  constexpr double kDecay = 0.7;
  on_layouts([](Player& player) {
    Strategy& s = player.strategy();
    TrainerOptions options = options_of(4);
    options.average_decay = kDecay;
    Named expected = parameters_of(s);
    const bool rounds = s.name().find("bf16") != std::string::npos;
    Trainer trainer(s, options);
    double averaged = 0, plain = 0;
    trainer.fit(
        rows_of_steps(player, 9),
        {.evaluate_every = 4,
         .evaluation = [&] { return rows_of_steps(player, 1); },
         .on_evaluation = [&](int64_t, const EvalReport& report) { averaged = report.loss; },
         .boundary =
             [&](int64_t) {
               for (auto& [name, value] : parameters_of(s)) {
                 expected.at(name).lerp_(value, 1 - kDecay);
               }
               return true;
             }});
    static_cast<void>(rounds);
    plain = trainer.evaluate(rows_of_steps(player, 1)).loss;
    test::require(plain != averaged, "evaluations of fit() are of the average");
    const Named trained = parameters_of(s);
    {
      const WeightAverage::Swapped swapped(*trainer.average());
      const std::string differs = difference(parameters_of(s), expected, 1e-6);
      test::require(differs == "", differs);
      test::require(trainer.evaluate(rows_of_steps(player, 1)).loss == averaged, "the same loss");
    }
    test::require(difference(parameters_of(s), trained, 0) == "", "the weights are back");
    test::require(trainer.evaluate(rows_of_steps(player, 1)).loss == plain,
                  "and forward reads them");
    int64_t average_bytes = 0, master_bytes = 0;
    for (const StateTensor& piece : trainer.strategy_state()) {
      if (piece.kind == "average") average_bytes += piece.nbytes();
      if (piece.kind == "parameter" && !piece.frozen) master_bytes += 4 * piece.slice.numel();
    }
    test::require(average_bytes == master_bytes && average_bytes == trainer.average()->bytes(),
                  "an average of ", average_bytes, " bytes beside masters of ", master_bytes);
  });
}

TEST_CASE("a skipped step leaves the average alone") {
  play(setup_of(parse_case("strategy=zero2 data=2")), [](Player& player) {
    Strategy& s = player.strategy();
    WeightAverage average(s, 0.5);
    const Named first = parameters_of(s);
    s.forward_backward(own_rows(player, 1));
    s.optimizer_step(kRate);
    average.update(at::ones({}));
    {
      const WeightAverage::Swapped swapped(average);
      test::require(difference(parameters_of(s), first, 0) == "", "as it began");
    }
    average.update(at::zeros({}));
    const WeightAverage::Swapped swapped(average);
    test::require(difference(parameters_of(s), first, 0) != "", "it moves");
    test::require_error(
        ErrorCode::kInvalidArgument, [&] { WeightAverage(s, 1); }, "a decay of 1");
  });
}

TEST_CASE("a callback that throws on one rank ends all, and they say which and why") {
  test::limit_collectives(10);
  for (const std::string which : {"on_step", "on_gradients", "on_evaluation", "on_save"}) {
    for (const std::string line :
         {"strategy=ddp data=2", "strategy=zero3 data=3", "strategy=zero1 pipeline=2 data=2"}) {
      INFO(which << " under " << line);
      const test::Watchdog watchdog(line, std::chrono::seconds(20));
      std::mutex mutex;
      std::vector<std::string> said;
      try {
        play(setup_of(parse_case(line)), [&](Player& player) {
          const auto planted = [&](const char* callback, int64_t step) {
            if (which == callback && player.rank() == 1 && step == 2) {
              fail(ErrorCode::kDataLoss, "the disk is full");
            }
          };
          Trainer trainer(player.strategy(), options_of(6));
          try {
            trainer.fit(
                rows_of_steps(player, 9),
                {.on_step = [&](const StepReport& r) { planted("on_step", r.step); },
                 .on_gradients = [&](int64_t step) { planted("on_gradients", step); },
                 .evaluate_every = 2,
                 .evaluation = [&] { return rows_of_steps(player, 1); },
                 .on_evaluation = [&](int64_t step,
                                      const EvalReport&) { planted("on_evaluation", step); },
                 .save_every = 2,
                 .on_save = [&](int64_t step) { planted("on_save", step); }});
          } catch (const Error& error) {
            const std::lock_guard lock(mutex);
            said.push_back(error.what());
            throw;
          }
        });
      } catch (const Error&) {
      }
      CHECK(said.size() == static_cast<size_t>(parse_case(line).ranks()));
      const std::string why = concat("the callback ", which, " threw at step 2: the disk is full");
      for (const std::string& message : said) CHECK_THAT(message, test::contains(why));
    }
  }
}

TEST_CASE("callbacks that need each other are refused without") {
  play(setup_of(parse_case("strategy=single")), [](Player& player) {
    Trainer trainer(player.strategy(), options_of(1));
    const BatchSource source = rows_of_steps(player, 1);
    const auto refused = [&](const std::string& says, const FitOptions& options) {
      const std::string said = test::require_error(
          ErrorCode::kInvalidArgument, [&] { trainer.fit(source, options); }, says);
      test::require(said.find(says) != std::string::npos, "it says: ", said);
    };
    refused("evaluate_every needs an evaluation", {.evaluate_every = 1});
    refused("early_stopping needs evaluate_every", {.early_stopping = EarlyStoppingConfig{}});
    refused("save_every needs on_save", {.save_every = 1});
    refused("it must be a number of steps", {.evaluate_every = -1});
    refused("the patience is 0", {.evaluate_every = 1,
                                  .evaluation = [&] { return source; },
                                  .early_stopping = EarlyStoppingConfig{.patience = 0}});
  });
}
