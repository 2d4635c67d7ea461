// SPDX-License-Identifier: MIT
#include <cstdio>
#include <exception>
#include <string>

#include "lib/compare/compare.h"
#include "lib/core/terminal.h"
#include "tessera/core/error.h"

namespace {

int stop(const char* what, int code) {
  const std::string line = tessera::concat("error: ", what, "\n");
  const size_t width = tessera::columns_of_terminal(stderr);
  std::fputs(tessera::wrapped_lines(line, /*indent=*/2, width).c_str(), stderr);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return tessera::programs::run_compare({argv + 1, argv + argc});
  } catch (const tessera::Error& error) {
    return stop(error.what(), tessera::exit_code(error.code()));
  } catch (const std::exception& error) {
    return stop(error.what(), 70);
  }
}
