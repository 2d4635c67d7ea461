// SPDX-License-Identifier: MIT
#pragma once
// What lines for people are fitted to.
#include <cstddef>
#include <cstdio>
#include <string>

namespace tessera {

// Columns of the window that the stream is shown in: the terminal's, else COLUMNS, else 80.
int terminal_width(std::FILE* stream);

// Whether a terminal may be given colours: not with NO_COLOR (no-color.org) or TERM=dumb.
bool terminal_has_colours();

// With blanks behind it up to this width.
std::string padded(std::string text, size_t width);

// Lines of at most `width` columns, each but the first behind `indent` blanks. `column`: where the
// first one begins. Words longer than a line stay whole.
std::string wrapped(const std::string& text, size_t column, size_t indent, size_t width);

}  // namespace tessera
