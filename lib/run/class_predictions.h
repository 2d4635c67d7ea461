// SPDX-License-Identifier: MIT
#pragma once
// Predictions of a classifier for every row of its validation data, and their scores.
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/data/data_loader.h"
#include "tessera/metrics/classification_scores.h"

namespace tessera::programs {

struct ClassPredictions {
  std::vector<std::string> names;  // of the classes
  std::vector<int64_t> labels, predicted;
  std::vector<double> probabilities;  // [rows, classes]
  metrics::ClassificationScores scores;

  // predictions.csv (a line a row: its number from 0, label, prediction, probabilities) and
  // scores.json. Throws Error(kDataLoss).
  void write(const std::string& directory) const;
};

// options: of the evaluation's loader on this rank; rows are taken in their order, padded. names:
// empty: the numbers. The same on every rank; collective.
ClassPredictions predict_classes(const TokenTable& rows, DataLoaderOptions options,
                                 std::vector<std::string> names, Strategy& strategy,
                                 const DeviceMesh& mesh);

}  // namespace tessera::programs
