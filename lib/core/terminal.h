// SPDX-License-Identifier: MIT
#pragma once
// Terminal width, colours and line wrapping.
#include <cstddef>
#include <cstdio>
#include <string>

namespace tessera {

// Columns of the stream's terminal, else COLUMNS, else 80.
int terminal_width(std::FILE* stream);

// Columns of the stream's terminal; 0: not a terminal.
size_t columns_of_terminal(std::FILE* stream);

// True if colours may be used: not with NO_COLOR (no-color.org) or TERM=dumb.
bool terminal_has_colours();

// Number of UTF-8 characters, one column each.
size_t characters(const std::string& text);

// Pads with spaces up to this width.
std::string padded(std::string text, size_t width);

// Lines of at most `width` columns; all but the first are indented by `indent`. `column`: start of
// the first one. Words longer than a line are not broken.
std::string wrapped(const std::string& text, size_t column, size_t indent, size_t width);

// Wraps the lines of `text` that are too long; continuation lines are indented `indent` further.
// width 0: unchanged.
std::string wrapped_lines(const std::string& text, size_t indent, size_t width);

}  // namespace tessera
