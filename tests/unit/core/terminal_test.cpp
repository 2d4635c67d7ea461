// SPDX-License-Identifier: MIT
#include "lib/core/terminal.h"

#include <pty.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "lib/core/printable.h"
#include "tessera/core/log.h"
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
  setenv("NO_COLOR", "", 1);  // as no-color.org defines
  CHECK(terminal_has_colours());
  setenv("TERM", "dumb", 1);
  CHECK_FALSE(terminal_has_colours());
}

TEST_CASE("a message on a terminal fits its window, and wipes a bar that stood there") {
  winsize size{.ws_row = 24, .ws_col = 40, .ws_xpixel = 0, .ws_ypixel = 0};
  int ours = -1, theirs = -1;
  REQUIRE(openpty(&ours, &theirs, nullptr, nullptr, &size) == 0);
  const int before = dup(STDERR_FILENO);
  dup2(theirs, STDERR_FILENO);
  setenv("NO_COLOR", "1", 1);
  write_log(LogLevel::kError, "every word of this message stands on a line that fits");
  dup2(before, STDERR_FILENO);
  char buffer[1024];
  const ssize_t read_bytes = read(ours, buffer, sizeof buffer);
  for (const int file : {ours, theirs, before}) close(file);
  REQUIRE(read_bytes > 0);
  const std::string text(buffer, static_cast<size_t>(read_bytes));
  INFO(text);
  CHECK(text.starts_with("\r\033[KE "));
  CHECK(text.find("of this\r\n" + std::string(15, ' ') + "message stands on a line\r\n") !=
        std::string::npos);
}

TEST_CASE("what a terminal obeys is shown, and never sent to it") {
  CHECK(printable("a\tb\nGrüße ⟦x⟧ 😀") == "a\tb\nGrüße ⟦x⟧ 😀");
  CHECK(printable("\033]0;title\007 \033[2J\r\177") == R"(\x1b]0;title\x07 \x1b[2J\r\x7f)");
  CHECK(printable(std::string_view("a\0b", 3)) == R"(a\x00b)");
  CHECK(printable("\u009b31m \u202eabc\u2069 \u2027\u2014") ==
        "\\u009b31m \\u202eabc\\u2069 \u2027\u2014");
  CHECK(printable("\xc2") == "\xc2");
  CHECK(printable("\033[32mx\033[0m") == R"(\x1b[32mx\x1b[0m)");
  CHECK(printable_with_colours("\033[32mx\033[0m \033[31m") == "\033[32mx\033[0m \\x1b[31m");
  std::ostringstream out;
  {
    const PrintableStream shown(out);
    out << "name " << '\033' << "[2J " << 5 << "\n";
  }
  out << "\033";
  CHECK(out.str() == "name \\x1b[2J 5\n\033");
}
