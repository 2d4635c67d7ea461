// SPDX-License-Identifier: MIT
#pragma once
// tessera-lint-ds as a function that tests can call.
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::programs {

// Reads DeepSpeed configuration files as --deepspeed does, without model, data and GPUs. Prints one
// line per finding and the equivalent flags of each file. arguments: without the program's name.
// Returns the exit code: 2 if any file has an error.
int run_lint_ds(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace tessera::programs
