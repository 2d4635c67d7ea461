// SPDX-License-Identifier: MIT
#include "tessera/metrics/event.h"

#include <cmath>
#include <limits>

#include "tests/support/test.hpp"

using namespace tessera::metrics;

TEST_CASE("an event is one line of JSON with its fields in order") {
  const Event event{"x",
                    {{"text", std::string("a\"b\n\xff")},
                     {"flag", true},
                     {"count", int64_t{9007199254740993}},
                     {"ratio", 0.1},
                     {"infinite", std::numeric_limits<double>::infinity()},
                     {"unknown", std::monostate()},
                     {"config", JsonText{R"({"a":1})"}}}};
  CHECK(
      to_json(event) ==
      "{\"text\":\"a\\\"b\\n\xEF\xBF\xBD\",\"flag\":true,\"count\":9007199254740993,\"ratio\":0.1,"
      "\"infinite\":null,\"unknown\":null,\"config\":{\"a\":1}}");
}

TEST_CASE("CSV cells are quoted where RFC 4180 or a spreadsheet needs it") {
  CHECK(to_csv(std::string("plain")) == "plain");
  CHECK(to_csv(std::string("a,b")) == "\"a,b\"");
  CHECK(to_csv(std::string("say \"x\"")) == "\"say \"\"x\"\"\"");
  for (const char* formula : {"=1+1", "+1", "-cmd", "@sum"}) {
    CHECK(to_csv(std::string(formula)) == "\"'" + std::string(formula) + "\"");
  }
  CHECK(to_csv(-0.5) == "-0.5");  // numbers stay numbers
  CHECK(to_csv(int64_t{-3}) == "-3");
  CHECK(to_csv(std::nan("")).empty());
  CHECK(to_csv(std::monostate()).empty());
}

TEST_CASE("a step without GPU has null GPU fields and a rate from its own time") {
  StepRecord record;
  record.step = 3;
  record.step_time_s = 0.5;
  record.tokens = 100;
  const Event event = to_event(record);
  CHECK(event.number("tokens_per_second") == 200.0);
  REQUIRE(event.find("gpu_mem_allocated_bytes") != nullptr);
  CHECK(*event.find("gpu_mem_allocated_bytes") == Value());
  CHECK_FALSE(event.number("grad_norm").has_value());
}

TEST_CASE("an evaluation has the scores that were taken, and no others") {
  EvalRecord record;
  CHECK(to_event(record).find("eval_f1_macro") == nullptr);
  record.eval_f1_macro = 0.25;
  record.eval_f1_weighted = 0.5;
  const Event event = to_event(record);
  CHECK(event.number("eval_f1_macro") == 0.25);
  CHECK(event.number("eval_f1_weighted") == 0.5);
  CHECK(event.find("eval_f1") == nullptr);
}
