// SPDX-License-Identifier: MIT
#pragma once
// Rows of random ids, to try speed and memory without data.
#include <cstdint>

#include "tessera/data/dataset.h"

namespace tessera {

struct RandomRowsOptions {
  Task task = Task::kCausal;
  int64_t rows = 0;
  int64_t vocab_size = 0;     // ids are 1 to vocab_size - 1
  int64_t longest = 0;        // tokens of a row, at least 2
  int64_t mean_length = 0;    // tokens; 0: every row is the longest
  bool answers_only = false;  // causal: the last tokens of a row are supervised, 4 in the mean
  int64_t num_labels = 0;     // classification
  uint64_t seed = 1;
};

// The same rows for the same options, on every host. Lengths with a mean are log-normal with a
// deviation of 0.4 of their logarithms, as those of SQuAD's questions with contexts, and end at the
// longest. Throws Error(kInvalidArgument) for sizes that make no rows.
Dataset random_rows(const RandomRowsOptions& options);

}  // namespace tessera
