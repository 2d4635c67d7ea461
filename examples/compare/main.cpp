// SPDX-License-Identifier: MIT
#include <cstdio>
#include <exception>

#include "lib/compare/compare.h"
#include "lib/core/version_flag.h"
#include "tessera/core/error.h"

int main(int argc, char** argv) {
  if (tessera::answered_version("tessera-compare", argc, argv)) return 0;
  try {
    return tessera::programs::run_compare({argv + 1, argv + argc});
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return tessera::exit_code(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 70;
  }
}
