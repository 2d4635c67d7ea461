// SPDX-License-Identifier: MIT
// tessera-env
// mpirun -n 8 tessera-env --json --directory /scratch
#include <iostream>

#include "lib/tools/env/report.h"

int main(int argc, char** argv) {
  return tessera::programs::run_env({argv + 1, argv + argc}, std::cout, std::cerr);
}
