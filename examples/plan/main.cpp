// SPDX-License-Identifier: MIT
// tessera-plan --model_config bloom-7b1 --strategy zero3 --ranks 8 --dtype bf16 --card h200
#include <iostream>

#include "lib/tools/plan/run_plan.h"

int main(int argc, char** argv) {
  return tessera::programs::run_plan({argv + 1, argv + argc}, std::cout, std::cerr);
}
