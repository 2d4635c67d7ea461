// SPDX-License-Identifier: MIT
#pragma once
// The rows of a comparison on the terminal.
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

// Two tables, what the rows are and how they did beside the baseline, and where their bytes are
// beside the formulas; columns in which all rows are alike are left out. width: of the window that
// it is fitted to; 0: to none.
std::string comparison_text(const ComparisonView& view, size_t width = 0);

}  // namespace tessera::programs
