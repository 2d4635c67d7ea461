// SPDX-License-Identifier: MIT
#pragma once
// tessera-checkpoint as a function, so that tests can run it in their own process.
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::programs {

// `arguments` without the program's name. Messages go to `err`. Returns the exit code.
int run_checkpoint_tool(const std::vector<std::string>& arguments, std::ostream& out,
                        std::ostream& err);

}  // namespace tessera::programs
