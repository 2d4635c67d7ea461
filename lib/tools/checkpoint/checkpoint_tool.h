// SPDX-License-Identifier: MIT
#pragma once
// tessera-checkpoint as a function that tests can call.
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::programs {

// arguments: without the program's name. Messages go to `err`. Returns the exit code.
int run_checkpoint_tool(const std::vector<std::string>& arguments, std::ostream& out,
                        std::ostream& err);

}  // namespace tessera::programs
