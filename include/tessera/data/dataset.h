// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Tokenised examples in memory: what every reader makes and the data loader serves.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/micro_batch.h"

namespace tessera {

/// Called now and then on the reader's thread with the share of a file that is done, in [0, 1].
using Progress = std::function<void(double)>;

/// What labels are.
enum class Task { kCausal, kClassification };

/// One row.
struct Example {
  std::vector<int32_t> input_ids;  ///< tokens, without padding
  /// Causal: one per token as in Hugging Face (not shifted: labels[s] is token s itself or
  /// kIgnoredLabel). Classification: exactly one.
  std::vector<int32_t> labels;
  std::vector<uint8_t> attention_mask;  ///< one per token; empty when all are real
};

/// Rows of one file.
struct Dataset {
  Task task = Task::kCausal;      ///< what the labels of all rows are
  std::vector<Example> examples;  ///< in the file's order
  int64_t num_labels = 0;         ///< classification

  int64_t size() const { return static_cast<int64_t>(examples.size()); }  ///< the number of rows
  int64_t longest() const;                                                ///< tokens
};

/// The examples of "BEGIN:END" (either may be missing), counted from 0, END not included. Throws
/// Error(kInvalidArgument) when it is malformed, empty or reaches past the end.
struct Slice {
  int64_t begin = 0;                                       ///< the first row
  int64_t end = -1;                                        ///< -1: to the end
  static Slice parse(const std::string& text);             ///< reads "BEGIN:END"; throws as above
  std::pair<int64_t, int64_t> within(int64_t rows) const;  ///< begin and end
  Dataset of(Dataset dataset) const;  ///< the rows of the data set that are in the slice
};

}  // namespace tessera
