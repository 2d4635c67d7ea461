// SPDX-License-Identifier: MIT
#include "lib/data/random_rows.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "tessera/core/error.h"
#include "tessera/core/micro_batch.h"

namespace tessera {
namespace {

// Own distributions on a standard engine: the standard's distributions differ between libraries.
class Draws {
 public:
  explicit Draws(uint64_t seed) : engine_(seed) {}

  int64_t below(int64_t count) { return static_cast<int64_t>(engine_() % uint64_t(count)); }
  double normal() {  // Box and Muller, 1958
    const double radius = std::sqrt(-2 * std::log(1 - unit()));
    return radius * std::cos(2 * std::numbers::pi * unit());
  }
  int64_t failures_before_success(double chance) {
    return static_cast<int64_t>(std::log(1 - unit()) / std::log(1 - chance));
  }

 private:
  double unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }  // [0, 1)

  std::mt19937_64 engine_;
};

int64_t draw_length(const RandomRowsOptions& options, Draws& draws) {
  constexpr double kDeviation = 0.4;
  if (options.mean_length == 0) return options.longest;
  const double of_mean =
      std::log(static_cast<double>(options.mean_length)) - kDeviation * kDeviation / 2;
  const double length = std::exp(of_mean + kDeviation * draws.normal());
  return std::clamp<int64_t>(std::lround(length), 2, options.longest);
}

}  // namespace

Dataset random_rows(const RandomRowsOptions& options) {
  const bool classes = options.task == Task::kClassification;
  check(options.rows >= 0 && options.vocab_size >= 2 && options.longest >= 2 &&
            options.mean_length >= 0 && options.mean_length <= options.longest &&
            (!classes || options.num_labels >= 1),
        ErrorCode::kInvalidArgument, "random rows: ", options.rows, " rows of at most ",
        options.longest, " tokens, ", options.mean_length, " in the mean, of ", options.vocab_size,
        " ids and ", options.num_labels,
        " labels: rows have 2 tokens at least, of 2 ids at least, and a mean up to the longest");
  Draws draws(options.seed);
  Dataset dataset{.task = options.task, .num_labels = options.num_labels};
  dataset.examples.resize(static_cast<size_t>(options.rows));
  for (Example& row : dataset.examples) {
    row.input_ids.resize(static_cast<size_t>(draw_length(options, draws)));
    for (int32_t& id : row.input_ids) {
      id = static_cast<int32_t>(1 + draws.below(options.vocab_size - 1));
    }
    if (classes) {
      row.labels = {static_cast<int32_t>(draws.below(options.num_labels))};
      continue;
    }
    row.labels = row.input_ids;
    if (!options.answers_only) continue;
    constexpr double kEnds = 0.25;  // probability that an answer ends after each further token
    const int64_t supervised = 1 + draws.failures_before_success(kEnds);
    const int64_t context = static_cast<int64_t>(row.labels.size()) - supervised;
    std::fill_n(row.labels.begin(), std::max<int64_t>(context, 1), kIgnoredLabel);
  }
  return dataset;
}

}  // namespace tessera
