// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Data set: tokenised examples in memory, made by readers and served by the data loader.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/micro_batch.h"

namespace tessera {

/// Progress callback, on the reader's thread, with the finished share of a file in [0, 1].
using Progress = std::function<void(double)>;

/// Kind of labels.
enum class Task { kCausal, kClassification };

/// One tokenised row.
struct Example {
  std::vector<int32_t> input_ids;  ///< tokens, without padding
  /// Causal: one per token as in Hugging Face (not shifted: labels[s] is token s itself or
  /// kIgnoredLabel). Classification: exactly one.
  std::vector<int32_t> labels;
  std::vector<uint8_t> attention_mask;  ///< one per token; empty when all tokens are real
};

/// Tokenised rows of one file.
struct Dataset {
  Task task = Task::kCausal;      ///< kind of all rows' labels
  std::vector<Example> examples;  ///< in the file's order
  int64_t num_labels = 0;         ///< number of classes (classification)

  int64_t size() const { return static_cast<int64_t>(examples.size()); }  ///< the number of rows
  int64_t longest() const;                                                ///< most tokens of a row
};

/// Row range "BEGIN:END", from 0, END excluded; either may be missing. Throws
/// Error(kInvalidArgument) for a malformed or empty range and for one past the end.
struct Slice {
  int64_t begin = 0;                                       ///< the first row
  int64_t end = -1;                                        ///< -1: to the end
  static Slice parse(const std::string& text);             ///< reads "BEGIN:END"; throws as above
  std::pair<int64_t, int64_t> within(int64_t rows) const;  ///< begin and end for so many rows
  Dataset of(Dataset dataset) const;                       ///< the data set's rows in the range
};

}  // namespace tessera
