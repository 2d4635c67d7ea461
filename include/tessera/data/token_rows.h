// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Rows tokenised elsewhere: JSON lines with input_ids, optional attention_mask, and labels.
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/row_issues.h"

namespace tessera {

/// What rows have to be.
struct TokenRowOptions {
  Task task = Task::kCausal;   ///< what labels are
  int64_t vocab_size = 0;      ///< ids must be below
  int64_t num_labels = 0;      ///< classification: labels must be below
  int64_t max_seq_length = 0;  ///< longer rows are cut at their end; 0: any length
  Progress progress = {};      ///< null: nobody is told
};

/// The rows of a file.
struct TokenRows {
  Dataset dataset;                        ///< in the file's order
  int64_t cut = 0;                        ///< rows that were too long
  std::vector<std::string> ignored_keys;  ///< that rows have beyond the known ones
};

/// Causal rows carry `labels` as a list of the same length (kIgnoredLabel or an id; not shifted);
/// without them the labels are the ids where the mask is 1. Classification rows carry one integer.
/// Throws Error(kInvalidArgument) for a file of another format (gzip, parquet), Error(kDataLoss)
/// with file, line and place for anything else. Rows without tokens, and
/// classification rows without a label, are skipped with `issues`, errors without.
TokenRows read_token_rows(const std::string& path, const TokenRowOptions& options,
                          RowIssues* issues = nullptr);

}  // namespace tessera
