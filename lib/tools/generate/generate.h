// SPDX-License-Identifier: MIT
#pragma once
// Main function of tessera-generate.
#include <string>

#include "lib/tools/generate/options.h"

namespace tessera::programs {

// Returns the exit code.
int run_generate(int argc, char** argv);

}  // namespace tessera::programs
