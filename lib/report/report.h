// SPDX-License-Identifier: MIT
#pragma once
// tessera-report as a function that tests can call.
#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::report {

// Prints tables of any set of runs. arguments: without the program's name. Returns the exit code.
// width: columns of the terminal `out`; 0: not a terminal, prints Markdown.
int run_report(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err,
               size_t width = 0);

}  // namespace tessera::report
