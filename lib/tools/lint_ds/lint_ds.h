// SPDX-License-Identifier: MIT
#pragma once
// tessera-lint-ds as a function, so that tests can run it in their own process.
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::programs {

// Reads DeepSpeed configuration files as --deepspeed does, without model, data and GPUs: one line a
// finding, and what each file says as flags. `arguments` without the program's name. Returns the
// exit code: 2 when any file has an error.
int run_lint_ds(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace tessera::programs
