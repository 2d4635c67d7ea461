// SPDX-License-Identifier: MIT
#include <cstdio>
#include <exception>

#include "lib/compare/compare.h"
#include "tessera/core/error.h"

int main(int argc, char** argv) {
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
