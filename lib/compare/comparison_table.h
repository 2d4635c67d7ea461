// SPDX-License-Identifier: MIT
#pragma once
// Terminal output of a comparison.
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

}  // namespace tessera::programs
