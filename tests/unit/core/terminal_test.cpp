// SPDX-License-Identifier: MIT
#include "lib/core/terminal.h"

#include <cstdlib>

#include "tests/support/test.hpp"

using namespace tessera;

TEST_CASE("text is wrapped at words") {
  CHECK(wrapped("one two three", 0, 2, 7) == "one two\n  three");
  CHECK(wrapped("one two", 5, 2, 8) == "one\n  two");
  CHECK(wrapped("", 5, 2, 8).empty());
  CHECK(wrapped("averylongword b", 0, 1, 5) == "averylongword\n b");
}

TEST_CASE("COLUMNS says the width where there is no terminal, NO_COLOR and TERM=dumb the colours") {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  setenv("COLUMNS", "123", 1);
  CHECK(terminal_width(file) == 123);
  setenv("COLUMNS", "x", 1);
  CHECK(terminal_width(file) == 80);
  std::fclose(file);
  setenv("TERM", "xterm", 1);
  unsetenv("NO_COLOR");
  CHECK(terminal_has_colours());
  setenv("NO_COLOR", "1", 1);
  CHECK_FALSE(terminal_has_colours());
  setenv("NO_COLOR", "", 1);  // as no-color.org has it
  CHECK(terminal_has_colours());
  setenv("TERM", "dumb", 1);
  CHECK_FALSE(terminal_has_colours());
}
