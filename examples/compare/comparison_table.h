#pragma once
// The rows of a comparison, on the terminal and as CSV.
#include <string>
#include <vector>

#include "examples/common/layout.h"
#include "examples/compare/parity.h"

namespace tessera::programs {

enum class Outcome { kFinished, kOutOfMemory, kFailed };

struct ComparisonRow {
  int64_t ranks = 1;
  std::vector<std::string> flags;  // of the fine-tuning program, besides those of all rows
  TrainOptions options;            // with them
  std::string name;                // of its folder, e.g. "zero2-4-pp2"
  Outcome outcome = Outcome::kFinished;
  int exit_code = 0;
  std::string message;  // why it did not finish
  double wall_s = 0;
  RunResult run;
  LayoutCost formula;
  Parity parity;
  bool is_reference = false, judged = false;  // judged: parity holds a verdict

  MeshExtents mesh() const { return mesh_extents(options, static_cast<int>(ranks)); }
  std::string verdict() const;  // reference, PASS, FAIL ..., or what happened instead
  bool failed() const;
};

// Bytes as MiB; "measured / formula" in one cell.
std::string comparison_text(const std::vector<ComparisonRow>& rows, double tolerance);
std::string comparison_csv(const std::vector<ComparisonRow>& rows);

}  // namespace tessera::programs
