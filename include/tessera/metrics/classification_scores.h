// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Scores of a classifier's predictions, as scikit-learn defines them with zero_division=0.
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::metrics {

/// Measures of one class.
struct ClassScore {
  double precision = 0, recall = 0, f1 = 0;  ///< in [0, 1]
  int64_t support = 0;                       ///< rows of this class
};

/// Measures of all rows.
struct ClassificationScores {
  int64_t total = 0;    ///< the number of rows
  double accuracy = 0;  ///< share of rows predicted right, in [0, 1]
  /// Means over the classes that occur among labels or predictions, plain and by support.
  double f1_macro = 0, f1_weighted = 0;
  std::vector<ClassScore> classes;              ///< measures of each class, by class number
  std::vector<std::vector<int64_t>> confusion;  ///< [label][prediction]
};

/// Throws Error(kInvalidArgument) for no rows, unequal numbers, or a class outside 0 .. classes-1.
ClassificationScores classification_scores(std::span<const int64_t> labels,
                                           std::span<const int64_t> predictions, int64_t classes);

/// Where to part two classes.
struct ClassThreshold {
  double threshold = 0.5, f1 = 0;  ///< a probability, and the F1 of class 1 with it
};

/// Of two classes: class 1 is predicted where its probability is at least the threshold. The
/// probability that occurs and gives class 1 the best F1; of equal ones the lowest.
ClassThreshold best_threshold(std::span<const int64_t> labels,
                              std::span<const double> probabilities);

}  // namespace tessera::metrics
