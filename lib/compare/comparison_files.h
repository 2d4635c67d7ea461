// SPDX-License-Identifier: MIT
#pragma once
// Machine-readable rows of a comparison; docs/reference/comparison.md describes both files.
#include <string>

#include "lib/compare/comparison_table.h"

namespace tessera::programs {

std::string comparison_csv(const ComparisonView& view);
std::string comparison_json(const ComparisonView& view);

}  // namespace tessera::programs
