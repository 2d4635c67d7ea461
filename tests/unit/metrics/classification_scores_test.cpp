// SPDX-License-Identifier: MIT
#include "tessera/metrics/classification_scores.h"

#include "tessera/core/json.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::metrics;

namespace {

Json fixture() {
  return Json::parse_file(TESSERA_SOURCE_DIR
                          "/tests/unit/metrics/fixtures/classification_scores.json");
}

std::vector<int64_t> integers(const Json& list) {
  std::vector<int64_t> values;
  for (const Json& item : list.items()) values.push_back(item.as_int64());
  return values;
}

Approx near(const Json& value) { return Approx(value.as_double()).epsilon(1e-12); }

}  // namespace

TEST_CASE("classification scores are scikit-learn's, classes that never occur included") {
  const auto samples = fixture().at("scores").items();
  REQUIRE(samples.size() == 18);
  for (const Json& sample : samples) {
    const int64_t classes = sample.at("classes").as_int64();
    const ClassificationScores scores = classification_scores(
        integers(sample.at("labels")), integers(sample.at("predictions")), classes);
    INFO(sample.path());
    CHECK(scores.total == static_cast<int64_t>(sample.at("labels").size()));
    CHECK(scores.accuracy == near(sample.at("accuracy")));
    CHECK(scores.f1_macro == near(sample.at("f1_macro")));
    CHECK(scores.f1_weighted == near(sample.at("f1_weighted")));
    REQUIRE(scores.classes.size() == static_cast<size_t>(classes));
    for (size_t c = 0; c < scores.classes.size(); ++c) {
      CHECK(scores.classes[c].precision == near(sample.at("precision").at(c)));
      CHECK(scores.classes[c].recall == near(sample.at("recall").at(c)));
      CHECK(scores.classes[c].f1 == near(sample.at("f1").at(c)));
      CHECK(scores.classes[c].support == sample.at("support").at(c).as_int64());
      CHECK(scores.confusion[c] == integers(sample.at("confusion").at(c)));
    }
  }
}

TEST_CASE("the best threshold of two classes is that of scikit-learn's curve") {
  const auto samples = fixture().at("thresholds").items();
  REQUIRE(samples.size() == 8);
  for (const Json& sample : samples) {
    std::vector<double> probabilities;
    for (const Json& p : sample.at("probabilities").items()) probabilities.push_back(p.as_double());
    const ClassThreshold best = best_threshold(integers(sample.at("labels")), probabilities);
    INFO(sample.path());
    CHECK(best.threshold == sample.at("threshold").as_double());
    CHECK(best.f1 == near(sample.at("f1")));
  }
}

TEST_CASE("scores of no rows, and of classes that are not there, are refused") {
  CHECK(error_of([] { classification_scores({}, {}, 2); }) ==
        "0 predictions for 0 labels; expected one for each, and at least one");
  const std::vector<int64_t> labels{0, 2}, predictions{0, 1};
  CHECK(error_of([&] { classification_scores(labels, predictions, 2); }) ==
        "row 1: class 2; there are 2");
}
