// SPDX-License-Identifier: MIT
#include "tessera/core/json.h"

#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/messages.hpp"
#include "tests/support/mutate.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

Json parse(std::string_view text, const JsonLimits& limits = {}) {
  return Json::parse(text, limits, "c.json");
}

std::string refusal(std::string_view text, const JsonLimits& limits = {}) {
  return error_of([&] { parse(text, limits); });
}

}  // namespace

TEST_CASE("values are read with their own types") {
  const Json json = parse(R"({"b": true, "i": -5, "u": 18446744073709551615, "d": 0.25, "e": 5e8,
                              "s": "\u00e9\ud83d\ude00\u0000x", "n": null, "a": [1, [2, {}]]})");
  CHECK(json.at("b").as_bool());
  CHECK(json.at("i").as_int64() == -5);
  CHECK(json.at("u").as_double() == 0x1p64);
  CHECK(json.at("d").as_double() == 0.25);
  CHECK(json.at("e").as_double() == 5e8);
  CHECK(json.at("i").as_double() == -5.0);
  CHECK(json.at("s").as_string() == std::string("\xC3\xA9\xF0\x9F\x98\x80\0x", 8));
  CHECK(json.at("a").at(1).at(0).as_int64() == 2);
  CHECK(json.size() == 8);
  CHECK(json.contains("n"));
  CHECK_FALSE(json.find("n"));
  CHECK_FALSE(json.contains("x"));
  CHECK(json.get("i", 7) == -5);
  CHECK(json.get("n", 7) == 7);
  CHECK(json.get("x", "none") == "none");
  CHECK(json.get("b", false));
  CHECK(json.get("d", 1.0) == 0.25);
  std::string keys;
  for (const auto& [key, value] : json.members()) keys += key;
  CHECK(keys == "biudesna");
}

TEST_CASE("integers stay integers") {
  const Json json = parse(R"({"huge": 18446744073709551616, "frac": 1.5, "one": 1.0, "exp": 1e3,
                              "neg": -5, "u": 9223372036854775808, "low": -9223372036854775809})");
  CHECK(error_of([&] { json.at("huge").as_int64(); }) ==
        "c.json: huge: expected an integer of 64 bits, found 18446744073709551616 "
        "(line 1, byte 9)");
  CHECK(error_of([&] { json.at("frac").as_int64(); }) ==
        "c.json: frac: expected an integer, found number 1.5 (line 1, byte 39)");
  CHECK(error_of([&] { json.at("one").as_int64(); }) != "no error");
  CHECK(error_of([&] { json.at("exp").as_int64(); }) != "no error");
  CHECK(error_of([&] { json.at("u").as_int64(); }) != "no error");
  CHECK(json.at("u").as_double() == 9223372036854775808.0);
  CHECK(error_of([&] { json.at("low").as_int64(); }) != "no error");
  CHECK(error_of([&] { json.at("neg").as_int64(0, 9); }) ==
        "c.json: neg: expected an integer from 0 to 9, found -5 (line 2, byte " +
            std::to_string(json.at("neg").offset()) + ")");
  // Numbers beyond 64 bits are still accepted: published tokenizer configurations contain such
  // lengths.
  CHECK(json.at("huge").as_double() == 18446744073709551616.0);
}

TEST_CASE("an accessor's error names file, path, line and byte") {
  const Json json =
      parse("{\n \"model\": {\"merges\": [\"a b\",\n [1, \"x\"]]},\n \"n_layer\": \"2\"}");
  CHECK(error_of([&] { json.at("n_layer").as_int64(); }) ==
        "c.json: n_layer: expected an integer, found string (line 4, byte 56)");
  const Json deep = json.at("model").at("merges").at(1).at(1);
  CHECK(deep.path() == "model.merges[1][1]");
  CHECK(error_of([&] { deep.as_bool(); }) ==
        "c.json: model.merges[1][1]: expected true or false, found string (line 3, byte 36)");
  CHECK(error_of([&] { json.at("nope"); }) == "c.json: has no \"nope\" (line 1, byte 0)");
  CHECK(error_of([&] { json.at("model").at("merges").at(2); }) ==
        "c.json: model.merges: has 2 elements, element 2 was wanted (line 2, byte 23)");
  CHECK(error_of([&] { json.at("model").items(); }) ==
        "c.json: model: expected an array, found object (line 2, byte 12)");
  CHECK(error_of([&] { json.at("n_layer").at("x"); }) ==
        "c.json: n_layer: expected an object, found string (line 4, byte 56)");
}

TEST_CASE("what is not strict JSON is refused with its place") {
  CHECK(refusal("{\"a\": 1,\n \"b\": 2,\n \"a\": 3}") ==
        "c.json: line 3, byte 24: not accepted as JSON: the key \"a\" appears twice");
  CHECK(refusal("[1, 2") ==
        "c.json: line 1, byte 5: not accepted as JSON: syntax error while parsing "
        "array - unexpected end of input; expected ']'");
  CHECK(refusal("[\"a\", \"\xff\"]") ==
        "c.json: line 1, byte 7: not accepted as JSON: not valid UTF-8");
  const std::string text = "a text needs quotation marks, a placeholder its value";
  for (const auto& [bad, word, at, what] :
       std::vector<std::tuple<std::string, std::string, int, std::string>>{
           {"{\"a\": True}", "True", 6, "write true"},
           {"[none]", "none", 1, "write null"},
           {"[1, nul]", "nul", 4, text},
           {"{\"a\":${SIZE}}", "${SIZE}", 5, text},
           {"{\"a\": /tmp/x, \"b\": 1}", "/tmp/x", 6, text},
           {"NaN", "NaN", 0, text},
           {"{\"a\": 1, b: 2}", "b", 9, "a key needs quotation marks"},
           {"{a:1}", "a", 1, "a key needs quotation marks"}}) {
    CAPTURE(bad);
    CHECK(refusal(bad) == concat("c.json: line 1, byte ", at, ": not accepted as JSON: \"", word,
                                 "\" is no value of JSON; ", what));
  }
  for (const char* bad : {"",
                          " ",
                          "[1,]",
                          "{\"a\":1,}",
                          "{a:1}",
                          "{'a':1}",
                          "[1] x",
                          "// c\n1",
                          "/* c */ 1",
                          "NaN",
                          "[Infinity]",
                          "-",
                          "01",
                          "1.",
                          ".5",
                          "+1",
                          "0x10",
                          "1e999",
                          "\"\\x\"",
                          "\"\\ud800\"",
                          "\"\\udc00\\ud800\"",
                          "\"a\nb\"",
                          "tru",
                          "[1 2]",
                          "{\"a\" 1}",
                          "{1:2}",
                          "]",
                          "\"",
                          "\xFE\xFF[]",
                          "{\"a\":{\"b\":1,\"b\":1}}",
                          "[\"\xED\xA0\x80\"]"}) {
    CAPTURE(bad);
    CHECK(refusal(bad).rfind("c.json: line ", 0) == 0);
  }
  CHECK(parse("\xEF\xBB\xBF {\"a\": 1}").at("a").offset() == 10);
}

TEST_CASE("limits hold") {
  const std::string deep = std::string(64, '[') + std::string(64, ']');
  CHECK(refusal(deep) == "no error");
  CHECK(refusal("[" + deep + "]") ==
        "c.json: line 1, byte 64: not accepted as JSON: nested deeper than 64 levels");
  CHECK(refusal(std::string(1000000, '[')).find("nested deeper") != std::string::npos);
  CHECK(refusal("[1]", {.max_bytes = 2}) == "c.json: 3 bytes of JSON, at most 2 are accepted here");
  try {
    parse("[", {.error_code = ErrorCode::kInvalidArgument});
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
  }
  const TempDir dir;
  const std::string path = dir.write("f.json", "[true");
  CHECK(error_of([&] { Json::parse_file(path); }).rfind(path + ": line 1, byte ", 0) == 0);
}

TEST_CASE("250,000 members are read and found in bounded time") {
  std::string text = "{";
  for (int i = 0; i < 250000; ++i) text += concat(i ? "," : "", "\"k", i * 7919 % 250000, "\":", i);
  const Json json = parse(text + "}");
  CHECK(json.size() == 250000);
  for (int i = 0; i < 250000; i += 1000) {
    CHECK(json.at(concat("k", int64_t{i} * 7919 % 250000)).as_int64() == i);
  }
}

TEST_CASE(
    "mutated documents end in a value or a tessera::Error, and what is accepted survives writing") {
  const std::string seed_text =
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "\u00e9": 1, "\ud83d\ude00": 2}, "merges": [["a", "b"], "c d"]},
          "x": [1, -2, 3.5e-7, 1e22, true, false, null, "é😀", {}, [], [[]]], "big": 18446744073709551616})";
  const std::string alphabet("{}[]\",:\\u0e1-+.tfn \n\x80\xff\xed");
  const size_t accepted =
      count_read(seed_text, alphabet, 30000, /*seed=*/7, [](const std::string& text) {
        const std::string written = parse(text, {.max_depth = 8}).dump();
        REQUIRE(parse(written).dump() == written);
      });
  CHECK(accepted > 1000);
  CHECK(accepted < 29000);
}
