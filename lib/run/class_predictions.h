// SPDX-License-Identifier: MIT
#pragma once
// Predictions of a classifier for every validation row, and their scores.
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/data/data_loader.h"
#include "tessera/metrics/classification_scores.h"

namespace tessera::programs {

struct ClassPredictions {
  std::vector<std::string> names;  // class names
  std::vector<int64_t> labels, predicted;
  std::vector<double> probabilities;  // [rows, classes]
  metrics::ClassificationScores scores;

  // Writes predictions.csv (per row: number from 0, label, prediction, probabilities) and
  // scores.json. Throws Error(kDataLoss).
  void write(const std::string& directory) const;
};

// options: this rank's evaluation loader; rows are read in order, padded. names: empty means the
// class numbers. Equal on every rank; collective.
ClassPredictions predict_classes(const TokenTable& rows, DataLoaderOptions options,
                                 std::vector<std::string> names, Strategy& strategy,
                                 const DeviceMesh& mesh);

}  // namespace tessera::programs
