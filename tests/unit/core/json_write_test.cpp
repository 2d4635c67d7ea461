// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>

#include "tessera/core/json.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

TEST_CASE("the writer nests, escapes and keeps numbers exact") {
  JsonWriter out;
  out.begin_object()
      .field("event", "step")
      .field("loss", 0.1)
      .field("one", 1.0)
      .field("tiny", 5e-324)
      .field("nan", std::nan(""))
      .field("min", std::numeric_limits<int64_t>::min())
      .field("max", std::numeric_limits<uint64_t>::max())
      .field("skipped", false)
      .field("text", "a\"\\\n\x01\x7F\u009B\xC2\xA0\xC3\xA9")
      .field("list", std::vector<int64_t>{1, 2})
      .key("empty")
      .begin_array()
      .end_array()
      .key("none")
      .null()
      .end_object();
  CHECK(
      out.text() ==
      R"({"event":"step","loss":0.1,"one":1.0,"tiny":5e-324,"nan":null,"min":-9223372036854775808,)"
      R"("max":18446744073709551615,"skipped":false,"text":"a\"\\\n\u0001\u007f\u009b é","list":[1,2],"empty":[],"none":null})");
  const Json back = Json::parse(out.text(), {}, "x");
  CHECK(back.at("tiny").as_double() == 5e-324);
  CHECK(back.dump() == out.text());
}

TEST_CASE("a parsed value is written back as it was, indented or not") {
  const std::string text =
      "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"huge\": 1000000000000000019884624838656,\n  \"d\": "
      "1e+22\n}";
  const Json json = Json::parse(text, {}, "x");
  CHECK(json.dump(2) == text);
  CHECK(json.dump() == R"({"a":[1,{}],"huge":1000000000000000019884624838656,"d":1e+22})");
}

TEST_CASE("misuse of the writer is an internal error, not broken JSON") {
  CHECK(error_of([] { JsonWriter().begin_object().value(1); }) != "no error");
  CHECK(error_of([] { JsonWriter().begin_array().key("a"); }) != "no error");
  CHECK(error_of([] { JsonWriter().begin_array().end_object(); }) != "no error");
  CHECK(error_of([] { JsonWriter().value(1).value(2); }) != "no error");
  CHECK(error_of([] { JsonWriter().begin_array().text(); }) != "no error");
  CHECK(error_of([] { JsonWriter().begin_object().key("a").end_object(); }) != "no error");
  CHECK(error_of([] { JsonWriter().value("\xff"); }) ==
        "JsonWriter: byte 0 of a string is not valid UTF-8");
}
