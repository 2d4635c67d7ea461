// SPDX-License-Identifier: MIT
#pragma once
// What lines for people are fitted to.
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace tessera {

// Columns of the window that the stream is shown in: the terminal's, else COLUMNS, else 80.
int terminal_width(std::FILE* stream);

// Columns of the terminal that the stream writes to; 0: it writes to none.
size_t columns_of_terminal(std::FILE* stream);

// Whether a terminal may be given colours: not with NO_COLOR (no-color.org) or TERM=dumb.
bool terminal_has_colours();

// With blanks behind it up to this width.
std::string padded(std::string text, size_t width);

// Lines of at most `width` columns, each but the first behind `indent` blanks. `column`: where the
// first one begins. Words longer than a line stay whole.
std::string wrapped(const std::string& text, size_t column, size_t indent, size_t width);

// The lines of `text`, those that are too long wrapped; later pieces stand `indent` blanks further
// in. width 0: as they are.
std::string wrapped_lines(const std::string& text, size_t indent, size_t width);

struct TableColumn {
  std::vector<std::string> cells;  // the title first
  bool left = false;               // aligned to the left
};
// The columns side by side. Those that do not fit into `width` (0: all do) follow below, behind the
// first column once more.
std::string aligned_table(const std::vector<TableColumn>& columns, size_t width);

}  // namespace tessera
