// SPDX-License-Identifier: MIT
#include "tessera/data/squad_scores.h"

#include <functional>

#include "lib/core/hash.h"
#include "lib/data/squad_words.h"
#include "lib/data/unicode.h"
#include "tessera/core/json.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/data/sample_paths.hpp"

using namespace tessera;

namespace {

Json fixture() {
  return Json::parse_file(source_path("tests/unit/data/fixtures/squad_scores.json"));
}

// SHA-256 over the results for every code point, one line each.
std::string digest(const std::function<std::string(const std::string&)>& line_of) {
  std::string lines;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    append_utf8(text, code);
    if (code > 0) lines += '\n';
    lines += line_of(text);
  }
  return sha256_hex(lines);
}

std::vector<std::string> strings(const Json& list) {
  std::vector<std::string> texts;
  for (const Json& item : list.items()) texts.push_back(item.as_string());
  return texts;
}

SquadEvaluation evaluate(const Json& sample, SquadVersion version) {
  std::vector<std::vector<std::string>> answers;
  for (const Json& list : sample.at("answers").items()) answers.push_back(strings(list));
  std::vector<SquadPrediction> predictions;
  for (const Json& text : sample.at("predictions").items()) {
    predictions.push_back({text.as_string()});
    if (const auto probabilities = sample.find("probabilities")) {
      predictions.back().no_answer_probability =
          probabilities->at(predictions.size() - 1).as_double();
    }
  }
  return evaluate_squad(answers, predictions, version, sample.get("threshold", 1.0));
}

void check_results(const char* kind, SquadVersion version, size_t least) {
  const std::vector<Json> samples = fixture().at(kind).items();
  REQUIRE(samples.size() >= least);
  for (const Json& sample : samples) {
    const Json written = Json::parse(evaluate(sample, version).to_json(), {}, "written");
    const Json expected = sample.at("result");
    INFO(expected.path() << " " << expected.dump());
    REQUIRE(written.size() == expected.size());
    for (const auto& [key, value] : expected.members()) {
      REQUIRE(written.at(key).as_double() == Approx(value.as_double()).epsilon(1e-13));
    }
  }
}

std::string normalise_answer(std::string_view text) {
  std::string normalised;
  for (const std::string& word : squad_words(text)) {
    normalised += (normalised.empty() ? "" : " ") + word;
  }
  return normalised;
}

}  // namespace

TEST_CASE("answers are normalised as Python does it, whatever the code point") {
  const Json expected = fixture();
  for (const Json& pair : expected.at("normalised").items()) {
    REQUIRE(normalise_answer(pair.at(size_t{0}).as_string()) == pair.at(size_t{1}).as_string());
  }
  CHECK(digest([](const std::string& c) { return python_lower("A" + c + "Σ" + c); }) ==
        expected.at("lower_sha256").as_string());
  CHECK(digest([](const std::string& c) {
          return normalise_answer("Xa" + c + "the" + c + " An");
        }) == expected.at("normalised_sha256").as_string());
}

TEST_CASE("exact match and F1 are those of the official script of v1.1") {
  check_results("v1", SquadVersion::k1, 12);
}

TEST_CASE("scores with and without answers and best thresholds are those of the script of v2.0") {
  check_results("v2", SquadVersion::k2, 24);
}

TEST_CASE("where a text normalises to nothing the two versions differ") {
  const std::vector<std::string> article{"the"};
  CHECK(squad_score("a", article, SquadVersion::k1).exact_match == 1);
  CHECK(squad_score("a", article, SquadVersion::k1).f1 == 0);
  CHECK(squad_score("a", article, SquadVersion::k2).f1 == 1);
  CHECK(squad_score("", {}, SquadVersion::k2).f1 == 1);
  const std::vector<std::string> both{"an", "sea"};
  CHECK(squad_score("", both, SquadVersion::k1).exact_match == 1);
  CHECK(squad_score("", both, SquadVersion::k2).exact_match == 0);
}

TEST_CASE("scores ask for one prediction a question, and v1.1 for answers") {
  CHECK(error_of([] { squad_score("x", {}, SquadVersion::k1); }) ==
        "SQuAD v1.1 has no questions without answers; score as v2.0");
  CHECK(error_of([] { evaluate_squad({}, {}, SquadVersion::k2); }) ==
        "0 predictions for 0 questions; expected one for each, and at least one");
}
