// SPDX-License-Identifier: MIT
// Calls in an invalid order, and schedules without an end, in every layout: rejected with one
// sentence on all ranks, without other effects.
#include <ATen/ATen.h>

#include <limits>

#include "lib/testing/fuzz.h"
#include "lib/testing/player.h"
#include "lib/testing/whole_state.h"
#include "tessera/optim/adamw.h"
#include "tessera/train/trainer.h"
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
    "strategy=zero1 data=3",
    "strategy=zero2 data=2",
    "strategy=zero2 data=3",
    "strategy=zero3 data=2",
    "strategy=zero3 data=3",
    "strategy=fsdp data=2",
    "strategy=fsdp data=3",
    "strategy=zero1 data=2 offload=optimizer offload_step=host",
    "strategy=zero1 data=2 offload=optimizer offload_step=both",
    "strategy=ddp pipeline=2",
    "strategy=zero3 pipeline=2 data=2 pipeline_schedule=1f1b",
};

using Script = std::function<void(Strategy&, const std::vector<MicroBatch>&)>;

// Runs the script on every rank of every layout, each within 20 s.
void on_all(const Script& script) {
  test::limit_collectives(10);
  for (const std::string& line : kLayouts) {
    INFO(line);
    const test::Watchdog watchdog(line, std::chrono::seconds(20));
    const FuzzCase layout = parse_case(line);
    CHECK_NOTHROW(play({.model = toy_language_model(),
                        .mesh = layout.mesh,
                        .parallel = layout.parallel,
                        .optimizer = make_adamw({.weight_decay = 0.1})},
                       [&](Player& player) {
                         Strategy& strategy = player.strategy();
                         const auto place = static_cast<uint64_t>(player.data_rank());
                         script(strategy, {toy_micro_batch({}, 2, 5, place),
                                           toy_micro_batch({}, 2, 5, 10 + place)});
                       }));
  }
}

void expect_refusal(const std::string& what, const std::string& says,
                    const std::function<void()>& call) {
  const std::string said = test::require_error(ErrorCode::kInvalidArgument, call, what);
  test::require(said.find(says) != std::string::npos, what, " says: ", said);
}

}  // namespace

TEST_CASE("a gradient is used before the next one, and an update has one") {
  on_all([](Strategy& s, const std::vector<MicroBatch>& batches) {
    const at::Tensor half = at::full({}, 0.5F);
    const char* const kNone = "needs a gradient, and there is none";
    expect_refusal("an update", kNone, [&] { s.optimizer_step(0.1); });
    expect_refusal("a norm", kNone, [&] { s.grad_norm_squared(); });
    expect_refusal("scaling", kNone, [&] { s.scale_gradients(half); });
    s.forward_backward(batches);
    const double norm = s.grad_norm_squared().item<double>();
    expect_refusal("a second step", "would replace the gradient of the first",
                   [&] { s.forward_backward(batches); });
    s.evaluate(batches);
    expect_refusal("a second step behind an evaluation", "would replace",
                   [&] { s.forward_backward(batches); });
    test::require(s.grad_norm_squared().item<double>() == norm, "the gradient is still there");
    const auto before = parameters_of(s);
    s.optimizer_step(0.1, at::ones({}));  // discards it
    for (const auto& [name, value] : parameters_of(s)) {
      test::require_bit_equal(value, before.at(name), name);
    }
    s.forward_backward(batches);
    test::require(s.grad_norm_squared().item<double>() == norm, "the same step once more");
    s.state_restored();
    expect_refusal("an update behind a restored state", kNone, [&] { s.optimizer_step(0.1); });
    s.forward_backward(batches);
    s.optimizer_step(0.1);
  });
}

TEST_CASE("a learning rate that is no number from 0 on is refused, and the gradient waits") {
  on_all([](Strategy& s, const std::vector<MicroBatch>& batches) {
    s.forward_backward(batches);
    const auto before = parameters_of(s);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    for (const double rate : {std::nan(""), kInfinity, -kInfinity, -0.1}) {
      expect_refusal(concat("a rate of ", rate), "learning rate", [&] { s.optimizer_step(rate); });
    }
    for (const auto& [name, value] : parameters_of(s)) {
      test::require_bit_equal(value, before.at(name), name);
    }
    s.optimizer_step(0.1);
    const auto after = parameters_of(s);
    test::require(!after.at("embedding.weight").equal(before.at("embedding.weight")), "a step");
    s.forward_backward(batches);
    s.optimizer_step(0);
  });
}

TEST_CASE("a schedule without an end of its own ends with the run") {
  on_all([](Strategy& s, const std::vector<MicroBatch>& batches) {
    std::vector<double> rates;
    const auto note = [&](const StepReport& report) { rates.push_back(report.learning_rate); };
    Trainer trainer(s, {.max_steps = 10, .schedule = {.peak = 0.1}});
    trainer.fit([&] { return batches; }, note);
    test::require(rates.size() == 10, "ten steps");
    for (int step = 0; step < 10; ++step) {
      const double expected = 0.1 * (10 - step) / 10;
      test::require(std::abs(rates[static_cast<size_t>(step)] - expected) < 1e-15, "step ", step,
                    " at ", rates[static_cast<size_t>(step)]);
    }
    Trainer endless(s, {.schedule = {.peak = 0.1}});
    expect_refusal("a run without an end", "Set LrSchedule::total_steps or TrainerOptions",
                   [&] { endless.fit([&] { return batches; }, note); });
    Trainer constant(s, {.schedule = {.kind = LrScheduleKind::kConstant, .peak = 0.1}});
    int left = 1;
    constant.fit([&] { return left-- > 0 ? batches : std::vector<MicroBatch>{}; }, note);
    test::require(rates.size() == 11 && rates.back() == 0.1, "a constant rate needs no end");
  });
}
