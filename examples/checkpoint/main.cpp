// SPDX-License-Identifier: MIT
// tessera-checkpoint verify out/checkpoint-500
// tessera-checkpoint export out/checkpoint-500 model --dtype bf16
#include <iostream>

#include "lib/core/version_flag.h"
#include "lib/tools/checkpoint/checkpoint_tool.h"

int main(int argc, char** argv) {
  if (tessera::answered_version("tessera-checkpoint", argc, argv)) return 0;
  return tessera::programs::run_checkpoint_tool({argv + 1, argv + argc}, std::cout, std::cerr);
}
