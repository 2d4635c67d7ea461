// SPDX-License-Identifier: MIT
#include "lib/core/terminal.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace tessera {

int terminal_width(std::FILE* stream) {
  winsize size{};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int number = columns == nullptr ? 0 : std::atoi(columns);
  return number > 0 ? number : 80;
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

}  // namespace tessera
