// SPDX-License-Identifier: MIT
#pragma once
// The list of rows that a comparison makes.
#include <string>
#include <vector>

#include "lib/compare/row.h"
#include "tessera/data/dataset.h"

namespace tessera::programs {

struct RowSource {
  Program program = Program::kSquad;
  std::vector<std::string> arguments;  // of every row
  // Comma-separated; the rows without a file: each strategy and DeepSpeed file on each of the
  // ranks.
  std::string strategies, deepspeed, peers, rank_counts;
  // One row a line: the number of ranks, then flags of the fine-tuning program, which win over
  // those of every row, --name NAME and --peer NAME. "#" begins a comment; lines that begin with
  // "--" are no rows.
  std::string rows_file;
  bool reference = true;      // single on one rank comes first, unless a row of the file is single
  bool weak_scaling = false;  // micro-batches as given instead of a constant global batch
  int64_t global_batch_size = 0;  // rows of an optimizer step; 0: that of the largest row
  bool largest_batch = false;     // the batch of each row is found later
};

// The words of a file's lines that begin with "--": flags of the comparison and of all its rows.
std::vector<std::string> flags_of_all_rows(const std::string& rows_file);

// Throws Error(kInvalidArgument) naming line and flag for a row that is not possible.
std::vector<ComparisonRow> make_rows(const RowSource& source);

// Gives a row its number of micro-batches, so that a step has `global_batch_size` rows (0: one
// micro-batch a rank), and with it its last flag and its work. Rows that say it themselves keep it.
void settle(ComparisonRow& row, int64_t global_batch_size);

// The arguments without those that `others` set, too.
std::vector<std::string> overridden(std::vector<std::string> arguments,
                                    const std::vector<std::string>& others);
// Replaces or appends --flag value.
void set_flag(std::vector<std::string>& arguments, const std::string& flag,
              const std::string& value);

}  // namespace tessera::programs
