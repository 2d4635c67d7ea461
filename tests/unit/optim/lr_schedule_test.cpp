// SPDX-License-Identifier: MIT
// Schedules against rates from transformers and DeepSpeed (scripts/make_lr_schedules.py,
// scripts/make_deepspeed_schedules.py).
#include "tessera/optim/lr_schedule.h"

#include <cmath>
#include <set>

#include "tessera/core/json.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"
#include "tests/support/text.hpp"

using namespace tessera;
using tessera::test::has;

namespace {

Json recorded() { return Json::parse_file(TESSERA_TEST_DATA "/lr_schedules.json"); }

void check_rates(const Json& schedules) {
  for (const Json& item : schedules.items()) {
    const std::string name = item.at("name").as_string();
    const LrScheduleKind kind = parse_lr_schedule(name);
    const LrSchedule schedule{kind, item.at("peak").as_double(), item.at("warmup_steps").as_int64(),
                              item.at("total_steps").as_int64(),
                              parse_lr_schedule_options(kind, item.at("options").dump())};
    schedule.validate();
    const std::vector<Json> rates = item.at("rates").items();
    for (size_t step = 0; step < rates.size(); ++step) {
      INFO(name << " " << item.at("options").dump() << ", step " << step);
      CHECK(std::abs(schedule.at(static_cast<int64_t>(step)) - rates[step].as_double()) <=
            1e-12 * schedule.peak);
    }
  }
}

std::string refusal(const std::string& name, const std::string& options, double peak = 1) {
  return error_of(ErrorCode::kInvalidArgument, [&] {
    const LrScheduleKind kind = parse_lr_schedule(name);
    LrSchedule{kind, peak, 0, 10, parse_lr_schedule_options(kind, options)}.validate();
  });
}

}  // namespace

TEST_CASE("learning rates equal transformers' at every step") {
  check_rates(recorded().at("schedules"));
}

TEST_CASE("learning rates equal those of DeepSpeed's schedulers at every update") {
  const Json file = Json::parse_file(TESSERA_TEST_DATA "/deepspeed_schedules.json");
  REQUIRE(file.at("schedules").size() == 9);
  check_rates(file.at("schedules"));
}

TEST_CASE("a plateau lowers the rate where torch's ReduceLROnPlateau does") {
  for (const Json& item : recorded().at("plateaus").items()) {
    const LrScheduleKind kind = LrScheduleKind::kReduceOnPlateau;
    PlateauRate rate(item.at("peak").as_double(),
                     parse_lr_schedule_options(kind, item.at("options").dump()));
    const std::vector<Json> metrics = item.at("metrics").items(), rates = item.at("rates").items();
    for (size_t i = 0; i < metrics.size(); ++i) {
      rate.observe(metrics[i].as_double());
      INFO(item.at("options").dump() << ", observation " << i);
      CHECK(rate.rate() == Approx(rates[i].as_double()).epsilon(1e-12));
    }
  }
}

TEST_CASE("every schedule of transformers is known but greedy, and three of DeepSpeed's") {
  const std::vector<std::string> ours = lr_schedule_names();
  std::set<std::string> names;
  for (const Json& name : recorded().at("names").items()) names.insert(name.as_string());
  CHECK(names.erase("greedy") == 1);
  names.insert({"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"});
  CHECK(std::set<std::string>(ours.begin(), ours.end()) == names);
}

TEST_CASE("a schedule's options are its own") {
  CHECK(has(refusal("linaer", ""), "\"linaer\" is unknown; use one of linear, cosine"));
  CHECK(has(refusal("cosine", "{\"power\": 2}"), "cosine does not take this: it takes num_cy"));
  CHECK(has(refusal("linear", "{\"power\": 2}"), "it takes none"));
  CHECK(has(refusal("cosine", "{\"num_cycles\": \"two\"}"), "num_cycles: expected"));
  CHECK(has(refusal("cosine", "2"), "lr_scheduler_kwargs"));
  CHECK(has(refusal("cosine_with_min_lr", ""), "either min_lr or min_lr_rate"));
  CHECK(has(refusal("warmup_stable_decay", ""), "num_decay_steps"));
  CHECK(has(refusal("warmup_stable_decay", R"({"num_decay_steps": 2, "decay_type": "sqrt"})"),
            "decay_type is 'sqrt'"));
  CHECK(has(refusal("WarmupLR", R"({"warmup_type": "cosine"})"), "expected log or linear"));
  CHECK(has(refusal("WarmupDecayLR", R"({"total_num_steps": 0})"), "total_num_steps is 0"));
  CHECK(has(refusal("polynomial", "", 1e-8), "not below the learning rate"));
  CHECK(has(refusal("inverse_sqrt", "{\"timescale\": 0}"), "timescale is 0"));
  CHECK(has(refusal("reduce_lr_on_plateau", "{\"factor\": 1.5}"), "below 1"));
}
