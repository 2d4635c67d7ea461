// SPDX-License-Identifier: MIT
#pragma once
// Rows of random ids, to measure speed and memory without data.
#include <cstdint>

#include "tessera/data/dataset.h"

namespace tessera {

struct RandomRowsOptions {
  Task task = Task::kCausal;
  int64_t rows = 0;
  int64_t vocab_size = 0;     // ids are 1 to vocab_size - 1
  int64_t longest = 0;        // tokens per row, at least 2
  int64_t mean_length = 0;    // tokens; 0: every row has `longest`
  bool answers_only = false;  // causal: only the last tokens of a row are supervised, 4 on average
  int64_t num_labels = 0;     // classification
  uint64_t seed = 1;
};

// Equal rows for equal options on every host. With a mean length, lengths are log-normal with a
// deviation of 0.4 of their logarithms, as SQuAD's questions with contexts, and capped at
// `longest`. Throws Error(kInvalidArgument) for sizes that make no rows.
Dataset random_rows(const RandomRowsOptions& options);

}  // namespace tessera
