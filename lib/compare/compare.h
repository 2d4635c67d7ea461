// SPDX-License-Identifier: MIT
#pragma once
// The program tessera-compare.
#include <string>
#include <vector>

namespace tessera::programs {

// Returns the exit code. Throws Error for invalid arguments.
int run_compare(const std::vector<std::string>& arguments);

}  // namespace tessera::programs
