// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Classification scores, as scikit-learn defines them with zero_division=0.
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::metrics {

/// Scores of one class.
struct ClassScore {
  double precision = 0, recall = 0, f1 = 0;  ///< in [0, 1]
  int64_t support = 0;                       ///< rows of this class
};

/// Scores over all rows.
struct ClassificationScores {
  int64_t total = 0;    ///< the number of rows
  double accuracy = 0;  ///< share of correct predictions, in [0, 1]
  /// Means over the classes that occur in labels or predictions, unweighted and by support.
  double f1_macro = 0, f1_weighted = 0;
  std::vector<ClassScore> classes;              ///< scores of each class, by class number
  std::vector<std::vector<int64_t>> confusion;  ///< [label][prediction]
};

/// Scores of predictions. Throws Error(kInvalidArgument) for no rows, unequal sizes, or a class
/// outside 0 .. classes-1.
ClassificationScores classification_scores(std::span<const int64_t> labels,
                                           std::span<const int64_t> predictions, int64_t classes);

/// Decision threshold of two classes.
struct ClassThreshold {
  double threshold = 0.5, f1 = 0;  ///< a probability of class 1, and the F1 of class 1 at it
};

/// The threshold with the best F1 of class 1, among the given probabilities; the lowest of equal
/// ones. Class 1 is predicted at or above the threshold.
ClassThreshold best_threshold(std::span<const int64_t> labels,
                              std::span<const double> probabilities);

}  // namespace tessera::metrics
