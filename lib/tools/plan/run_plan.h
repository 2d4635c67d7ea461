// SPDX-License-Identifier: MIT
#pragma once
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::programs {

// tessera-plan: memory and traffic of a run, without model, data or GPU. Returns the exit code: 3
// if it does not fit.
int run_plan(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace tessera::programs
