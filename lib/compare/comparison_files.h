// SPDX-License-Identifier: MIT
#pragma once
// The rows of a comparison for programs: docs/reference/comparison.md describes both files.
#include <string>

#include "lib/compare/comparison_table.h"

namespace tessera::programs {

std::string comparison_csv(const ComparisonView& view);
std::string comparison_json(const ComparisonView& view);

}  // namespace tessera::programs
