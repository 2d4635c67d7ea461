// SPDX-License-Identifier: MIT
#include "tessera/metrics/classification_scores.h"

#include <algorithm>
#include <numeric>

#include "tessera/core/error.h"

namespace tessera::metrics {
namespace {

double ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

void check_rows(size_t labels, size_t predictions) {
  check(labels > 0 && labels == predictions, ErrorCode::kInvalidArgument, predictions,
        " predictions for ", labels, " labels; expected one for each, and at least one");
}

}  // namespace

ClassificationScores classification_scores(std::span<const int64_t> labels,
                                           std::span<const int64_t> predictions, int64_t classes) {
  check_rows(labels.size(), predictions.size());
  const auto count = static_cast<size_t>(classes);
  ClassificationScores scores{.total = static_cast<int64_t>(labels.size()),
                              .confusion = {count, std::vector<int64_t>(count, 0)}};
  for (size_t i = 0; i < labels.size(); ++i) {
    for (const int64_t one : {labels[i], predictions[i]}) {
      check(one >= 0 && one < classes, ErrorCode::kInvalidArgument, "row ", i, ": class ", one,
            "; there are ", classes);
    }
    ++scores.confusion[static_cast<size_t>(labels[i])][static_cast<size_t>(predictions[i])];
  }
  int64_t right = 0, occurring = 0;
  for (size_t c = 0; c < count; ++c) {
    const int64_t hits = scores.confusion[c][c];
    int64_t predicted = 0;
    for (const std::vector<int64_t>& row : scores.confusion) predicted += row[c];
    ClassScore score{.support =
                         std::reduce(scores.confusion[c].begin(), scores.confusion[c].end())};
    score.precision = ratio(hits, predicted);
    score.recall = ratio(hits, score.support);
    score.f1 = ratio(2 * hits, predicted + score.support);
    right += hits;
    occurring += predicted + score.support > 0 ? 1 : 0;
    scores.f1_macro += score.f1;
    scores.f1_weighted += score.f1 * static_cast<double>(score.support);
    scores.classes.push_back(score);
  }
  scores.accuracy = ratio(right, scores.total);
  scores.f1_macro /= static_cast<double>(occurring);
  scores.f1_weighted /= static_cast<double>(scores.total);
  return scores;
}

ClassThreshold best_threshold(std::span<const int64_t> labels,
                              std::span<const double> probabilities) {
  check_rows(labels.size(), probabilities.size());
  std::vector<size_t> order(labels.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, std::greater(), [&](size_t i) { return probabilities[i]; });
  const auto positives = static_cast<int64_t>(std::ranges::count(labels, 1));
  ClassThreshold best{.threshold = probabilities[order.front()]};
  int64_t hits = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    hits += labels[order[i]] == 1 ? 1 : 0;
    const double threshold = probabilities[order[i]];
    if (i + 1 < order.size() && probabilities[order[i + 1]] == threshold) continue;
    const double f1 = ratio(2 * hits, static_cast<int64_t>(i + 1) + positives);
    if (f1 >= best.f1) best = {threshold, f1};
  }
  return best;
}

}  // namespace tessera::metrics
