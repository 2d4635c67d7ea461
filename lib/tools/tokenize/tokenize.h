// SPDX-License-Identifier: MIT
#pragma once
// tessera-tokenize as a function that tests can call.
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::programs {

// arguments: without the program's name. Messages go to `err`. Returns the exit code.
int run_tokenize(const std::vector<std::string>& arguments, std::istream& in, std::ostream& out,
                 std::ostream& err);

}  // namespace tessera::programs
