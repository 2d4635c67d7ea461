// SPDX-License-Identifier: MIT
#pragma once
// tessera-report as a function, so that tests can run it in their own process.
#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::report {

// Tables of any set of runs. `arguments` without the program's name. Returns the exit code.
// width: of the terminal that `out` is; 0: it is none, and gets Markdown.
int run_report(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err,
               size_t width = 0);

}  // namespace tessera::report
