// SPDX-License-Identifier: MIT
#include "lib/data/random_rows.h"

#include <algorithm>
#include <set>

#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

double mean_length(const Dataset& rows) {
  double tokens = 0;
  for (const Example& row : rows.examples) tokens += static_cast<double>(row.input_ids.size());
  return tokens / static_cast<double>(rows.size());
}

int64_t supervised(const Example& row) {
  return std::ranges::count_if(row.labels, [](int32_t label) { return label >= 0; });
}

}  // namespace

TEST_CASE("random rows are the same on every host") {
  const RandomRowsOptions options{.rows = 3, .vocab_size = 1000, .longest = 9, .mean_length = 4};
  const Dataset rows = random_rows(options), again = random_rows(options);
  REQUIRE(rows.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(rows.examples[i].input_ids == again.examples[i].input_ids);
    CHECK(rows.examples[i].labels == rows.examples[i].input_ids);
  }
  // From a Python program with its own implementation of the engine.
  CHECK(rows.examples[0].input_ids == std::vector<int32_t>{685, 550, 325, 835});
  RandomRowsOptions other = options;
  other.seed = 2;
  CHECK(random_rows(other).examples[0].input_ids != rows.examples[0].input_ids);
}

TEST_CASE("random rows have the lengths and ids that were asked for") {
  const Dataset fixed = random_rows({.rows = 50, .vocab_size = 40, .longest = 64});
  std::set<int32_t> ids;
  for (const Example& row : fixed.examples) {
    CHECK(row.input_ids.size() == 64);
    ids.insert(row.input_ids.begin(), row.input_ids.end());
  }
  CHECK(ids.size() == 39);
  CHECK(*ids.begin() == 1);
  CHECK(*ids.rbegin() == 39);
  const Dataset ragged =
      random_rows({.rows = 4000, .vocab_size = 40, .longest = 512, .mean_length = 183});
  CHECK(mean_length(ragged) == Approx(183).epsilon(0.02));
  const auto [least, most] = std::ranges::minmax(
      ragged.examples, {}, [](const Example& row) { return row.input_ids.size(); });
  CHECK(least.input_ids.size() < 70);
  CHECK(most.input_ids.size() > 400);
  CHECK(ragged.longest() <= 512);
}

TEST_CASE("random rows are supervised as answers are, or have a class each") {
  const Dataset answers = random_rows(
      {.rows = 4000, .vocab_size = 40, .longest = 30, .mean_length = 20, .answers_only = true});
  double targets = 0;
  for (const Example& row : answers.examples) {
    REQUIRE(row.labels.size() == row.input_ids.size());
    REQUIRE(supervised(row) >= 1);
    REQUIRE(row.labels.front() == -100);
    REQUIRE(std::equal(row.labels.end() - supervised(row), row.labels.end(),
                       row.input_ids.end() - supervised(row)));
    targets += static_cast<double>(supervised(row));
  }
  CHECK(targets / 4000 == Approx(4).epsilon(0.05));
  const Dataset classes = random_rows({.task = Task::kClassification,
                                       .rows = 300,
                                       .vocab_size = 40,
                                       .longest = 8,
                                       .num_labels = 3});
  std::set<int32_t> labels;
  for (const Example& row : classes.examples) {
    REQUIRE(row.labels.size() == 1);
    labels.insert(row.labels[0]);
  }
  CHECK(labels == std::set<int32_t>{0, 1, 2});
  CHECK(classes.num_labels == 3);
}

TEST_CASE("sizes that make no random rows are refused") {
  for (const RandomRowsOptions& wrong : std::vector<RandomRowsOptions>{
           {.rows = 1, .vocab_size = 1, .longest = 4},
           {.rows = 1, .vocab_size = 9, .longest = 1},
           {.rows = -1, .vocab_size = 9, .longest = 4},
           {.rows = 1, .vocab_size = 9, .longest = 4, .mean_length = 5},
           {.task = Task::kClassification, .rows = 1, .vocab_size = 9, .longest = 4}}) {
    CHECK(error_of(ErrorCode::kInvalidArgument, [&] { random_rows(wrong); })
              .ends_with("rows have 2 tokens at least, of 2 ids at least, and a mean up to the "
                         "longest"));
  }
}
