// SPDX-License-Identifier: MIT
#pragma once
// Rows of a comparison.
#include <string>
#include <vector>

#include "lib/compare/row.h"
#include "tessera/data/dataset.h"

namespace tessera::programs {

struct RowSource {
  Program program = Program::kSquad;
  std::vector<std::string> arguments;  // common to all rows
  // Comma-separated. Without a rows file: each strategy and DeepSpeed file on each number of ranks.
  std::string strategies, deepspeed, peers, rank_counts;
  // One row per line: number of ranks, flags of the fine-tuning program that override the common
  // ones, --name NAME and --peer NAME. "#" starts a comment; lines that start with "--" are not
  // rows.
  std::string rows_file;
  bool reference = true;          // adds `single` on one rank first, unless the file has such a row
  bool weak_scaling = false;      // micro-batches as given, instead of a constant global batch
  int64_t global_batch_size = 0;  // rows per optimizer step; 0: that of the largest row
  bool largest_batch = false;     // the batch of each row is searched later
};

// Words of a file's "--" lines: flags of the comparison and of all its rows.
std::vector<std::string> flags_of_all_rows(const std::string& rows_file);

// Throws Error(kInvalidArgument) with line and flag for an impossible row.
std::vector<ComparisonRow> make_rows(const RowSource& source);

// Sets a row's micro-batches so that a step has `global_batch_size` rows (0: one micro-batch per
// rank), its last flag and its work. Rows with their own accumulation keep it.
void settle(ComparisonRow& row, int64_t global_batch_size);

// The arguments without those that `others` also set.
std::vector<std::string> overridden(std::vector<std::string> arguments,
                                    const std::vector<std::string>& others);
// Replaces or appends --flag value.
void set_flag(std::vector<std::string>& arguments, const std::string& flag,
              const std::string& value);

}  // namespace tessera::programs
