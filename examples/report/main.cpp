// SPDX-License-Identifier: MIT
// tessera-report runs/zero2 runs/zero3
// tessera-report runs/compare --tables 4 --output table.csv
#include <iostream>

#include "lib/core/version_flag.h"
#include "lib/report/report.h"

int main(int argc, char** argv) {
  if (tessera::answered_version("tessera-report", argc, argv)) return 0;
  return tessera::report::run_report({argv + 1, argv + argc}, std::cout, std::cerr);
}
