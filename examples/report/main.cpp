// SPDX-License-Identifier: MIT
// tessera-report runs/zero2 runs/zero3
// tessera-report runs/compare --tables 4 --output table.csv
#include <iostream>

#include "lib/core/terminal.h"
#include "lib/report/report.h"

int main(int argc, char** argv) {
  return tessera::report::run_report({argv + 1, argv + argc}, std::cout, std::cerr,
                                     tessera::columns_of_terminal(stdout));
}
