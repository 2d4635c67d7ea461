// SPDX-License-Identifier: MIT
// tessera-lint-ds ds_config.json
// tessera-lint-ds --ranks 8 configs/*.json
#include <iostream>

#include "lib/tools/lint_ds/lint_ds.h"

int main(int argc, char** argv) {
  return tessera::programs::run_lint_ds({argv + 1, argv + argc}, std::cout, std::cerr);
}
