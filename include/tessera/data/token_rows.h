// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Token rows: JSON lines with input_ids, optional attention_mask, and labels.
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/row_issues.h"

namespace tessera {

/// Requirements on rows.
struct TokenRowOptions {
  Task task = Task::kCausal;   ///< kind of labels
  int64_t vocab_size = 0;      ///< upper bound of ids, exclusive
  int64_t num_labels = 0;      ///< classification: upper bound of labels, exclusive
  int64_t max_seq_length = 0;  ///< longer rows are truncated; 0: any length
  Progress progress = {};      ///< null: not reported
};

/// Rows of a file.
struct TokenRows {
  Dataset dataset;                        ///< in the file's order
  int64_t cut = 0;                        ///< truncated rows
  std::vector<std::string> ignored_keys;  ///< unknown keys of the rows
};

/// Reads a file of token rows. Causal rows have `labels` as a list of the same length
/// (kIgnoredLabel or an id; not shifted); without them the ids are labels where the mask is 1.
/// Classification rows have one integer. Throws Error(kInvalidArgument) for another file format
/// (gzip, parquet), and Error(kDataLoss) with file, line and place for other defects. Rows without
/// tokens, and classification rows without a label, are skipped with `issues`, errors without.
TokenRows read_token_rows(const std::string& path, const TokenRowOptions& options,
                          RowIssues* issues = nullptr);

}  // namespace tessera
