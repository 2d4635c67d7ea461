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

TEST_CASE("lines that are too long for the window are wrapped, others stay as they are") {
  const std::string text = "one two three\n  four  x\n\n  six seven eight\n";
  CHECK(wrapped_lines(text, 1, 11) == "one two\n three\n  four  x\n\n  six seven\n   eight\n");
  CHECK(wrapped_lines(text, 1, 0) == text);
  CHECK(wrapped_lines("", 1, 8).empty());
}

TEST_CASE("columns that do not fit the window follow below, behind the first one") {
  const std::vector<TableColumn> columns{{{"row", "a", "bcde"}, true},
                                         {{"tokens/s", "1", "20"}},
                                         {{"loss", "–", "7.25"}},
                                         {{"verdict", "PASS", "PASS"}, true}};
  CHECK(aligned_table(columns, 0) ==
        "row   tokens/s  loss  verdict\na            1     –  PASS\nbcde        20  7.25  PASS\n");
  CHECK(aligned_table(columns, 29) == aligned_table(columns, 0));
  CHECK(aligned_table(columns, 20) ==
        "row   tokens/s  loss\na            1     –\nbcde        20  7.25\n"
        "\nrow   verdict\na     PASS\nbcde  PASS\n");
  CHECK(aligned_table({columns[0]}, 2) == "row\na\nbcde\n");
  CHECK(aligned_table({columns[0], columns[1]}, 5) == aligned_table({columns[0], columns[1]}, 0));
  CHECK(aligned_table({}, 10).empty());
}

TEST_CASE("a file is no terminal") {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  CHECK(columns_of_terminal(file) == 0);
  std::fclose(file);
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
