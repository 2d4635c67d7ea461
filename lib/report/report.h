// SPDX-License-Identifier: MIT
#pragma once
// tessera-report as a function, so that tests can run it in their own process.
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::report {

// Tables of any set of runs. `arguments` without the program's name. Returns the exit code.
int run_report(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace tessera::report
