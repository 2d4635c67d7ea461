// SPDX-License-Identifier: MIT
#pragma once
// A comparison's rows as tables for the terminal and as files.
#include <cstdint>
#include <string>
#include <vector>

#include "lib/compare/row.h"

namespace tessera::programs {

struct ComparisonView {
  const std::vector<ComparisonRow>& rows;
  const ComparisonRow& baseline;
  int64_t repeat = 1;
  std::string scaling;   // strong or weak
  double tolerance = 0;  // 0: by dtype
};

// Two tables: the rows with their results against the baseline, and their memory against the
// formulas. Columns in which all rows are equal are left out. width: of the terminal; 0: no limit.
std::string comparison_text(const ComparisonView& view, size_t width = 0);

// Machine-readable rows; docs/reference/comparison.md describes both files.
std::string comparison_csv(const ComparisonView& view);
std::string comparison_json(const ComparisonView& view);

}  // namespace tessera::programs
