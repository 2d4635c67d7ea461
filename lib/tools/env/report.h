// SPDX-License-Identifier: MIT
#pragma once
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::programs {

// tessera-env: what it is started on. Returns the exit code.
int run_env(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace tessera::programs
