// SPDX-License-Identifier: MIT
#include "lib/core/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace tessera {
size_t characters(const std::string& text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

int terminal_width(std::FILE* stream) {
  winsize size{};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int number = columns == nullptr ? 0 : std::atoi(columns);
  return number > 0 ? number : 80;
}

size_t columns_of_terminal(std::FILE* stream) {
  if (isatty(fileno(stream)) == 0) return 0;
  return static_cast<size_t>(std::max(20, terminal_width(stream)));
}

bool terminal_has_colours() {
  const char* none = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return (none == nullptr || *none == '\0') &&
         (terminal == nullptr || std::string(terminal) != "dumb");
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

std::string wrapped(const std::string& text, size_t column, size_t indent, size_t width) {
  std::string lines;
  std::istringstream words(text);
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && column + 1 + word.size() > width) {
      lines += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      lines += " ";
      ++column;
    }
    lines += word;
    column += word.size();
  }
  return lines;
}

std::string wrapped_lines(const std::string& text, size_t indent, size_t width) {
  std::string all;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const size_t blanks = std::min(line.find_first_not_of(' '), line.size());
    all +=
        width == 0 || characters(line) <= width
            ? line
            : line.substr(0, blanks) + wrapped(line.substr(blanks), blanks, blanks + indent, width);
    if (end < text.size()) all += "\n";
    begin = end + 1;
  }
  return all;
}

}  // namespace tessera
