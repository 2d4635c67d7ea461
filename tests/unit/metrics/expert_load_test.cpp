// SPDX-License-Identifier: MIT
#include "lib/metrics/expert_load.h"

#include <string>
#include <vector>

#include "tests/support/test.hpp"

using namespace tessera::metrics;

TEST_CASE("a step's counters become losses, entropy, the least load and tokens by expert") {
  StepRecord record{.supervised_tokens = 10};
  // Two layers of four experts: an even one, and one of which an expert has nothing.
  add_expert_load(std::vector<double>{20, 5, 3, 3, 3, 3, 6, 6, 0, 0}, 4, record);
  CHECK(record.router_balance_loss == 2.0);
  CHECK(record.router_z_loss == 0.5);
  CHECK(record.expert_load_entropy_ratio == Approx((1 + 0.5) / 2));
  CHECK(record.expert_least_load_ratio == 0.0);
  CHECK(record.expert_dropped_ratio == 0.0);
  CHECK(record.expert_tokens == std::vector<int64_t>{9, 9, 3, 3});
  const Event event = to_event(record);
  CHECK(event.text("expert_tokens").empty());
  REQUIRE(event.find("expert_tokens") != nullptr);
  CHECK(std::get<JsonText>(*event.find("expert_tokens")).text == "[9,9,3,3]");
  CHECK(event.number("router_balance_loss") == 2.0);

  StepRecord dense;
  add_expert_load(std::vector<double>{}, 4, dense);
  add_expert_load(std::vector<double>{1}, 0, dense);
  CHECK(dense.expert_tokens.empty());
  CHECK(to_event(dense).find("expert_tokens") == nullptr);
  StepRecord nothing;  // no token at all
  add_expert_load(std::vector<double>{0, 0, 0, 0}, 2, nothing);
  CHECK_FALSE(nothing.expert_load_entropy_ratio);
  CHECK_FALSE(nothing.router_z_loss);
}

TEST_CASE("starving experts are told once, and chance is not starving") {
  const auto told = [](std::vector<double> tokens, int steps = 200) {
    tokens.insert(tokens.begin(), {1, 1});
    StarvingWatch watch;
    std::vector<std::string> texts;
    for (int step = 1; step <= steps; ++step) {
      if (const auto text = watch.add(tokens, 3, step)) texts.push_back(*text);
    }
    return texts;
  };
  CHECK(told({30, 30, 30, 30, 59, 0.2}, 49).empty());
  const auto texts = told({30, 30, 30, 30, 59.8, 0.2});
  REQUIRE(texts.size() == 1);
  CHECK(texts[0].starts_with(
      "1 of 3 experts got less than 1 % of an even share of the tokens of 50 steps up to step 50, "
      "in layer 1 (from 0) of those with experts"));
  CHECK(told({30, 30, 30, 30, 59, 1}).empty());      // more than 1 %
  CHECK(told({30, 30, 0, 30, 30, 30}).size() == 1);  // an even share of 1,000 tokens
  CHECK(told({29, 29, 0, 30, 30, 30}).empty());      // and less
}
