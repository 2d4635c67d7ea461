#pragma once
// The list of runs that a comparison makes.
#include <string>
#include <vector>

#include "examples/compare/comparison_table.h"
#include "tessera/data/dataset.h"

namespace tessera::programs {

struct RowSource {
  Program program = Program::kSquad;
  std::vector<std::string> arguments;   // of every row
  std::string strategies, rank_counts;  // comma-separated; the rows without a file
  // One row a line: the number of ranks, then flags of the fine-tuning program. "#" begins a
  // comment.
  std::string rows_file;
  int64_t global_batch_size = 0;  // rows of an optimizer step; 0: that of the largest run
};

// The reference, "single" on one rank, comes first. Throws Error(kInvalidArgument) naming line and
// flag for a row that is not possible.
std::vector<ComparisonRow> make_rows(const RowSource& source);

}  // namespace tessera::programs
