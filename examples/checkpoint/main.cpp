// SPDX-License-Identifier: MIT
// tessera-checkpoint verify out/checkpoint-500
// tessera-checkpoint export out/checkpoint-500 model --dtype bf16
#include <iostream>

#include "lib/tools/checkpoint/checkpoint_tool.h"

int main(int argc, char** argv) {
  return tessera::programs::run_checkpoint_tool({argv + 1, argv + argc}, std::cout, std::cerr);
}
