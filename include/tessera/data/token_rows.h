#pragma once
// Rows tokenised elsewhere: JSON lines with input_ids, optional attention_mask, and labels.
#include <string>

#include "tessera/data/dataset.h"

namespace tessera {

struct TokenRowOptions {
  Task task = Task::kCausal;
  int64_t vocab_size = 0;      // ids must be below
  int64_t num_labels = 0;      // classification: labels must be below
  int64_t max_seq_length = 0;  // longer rows are refused; 0: any length
};

// Causal rows carry `labels` as a list of the same length (kIgnoredLabel or an id; not shifted),
// classification rows one integer. Throws Error(kDataLoss) with file, line and place for anything
// else.
Dataset read_token_rows(const std::string& path, const TokenRowOptions& options);

}  // namespace tessera
