// SPDX-License-Identifier: MIT
#pragma once
// Plots and tables as files of their own, for papers and slides.
#include <string>

#include "lib/report/figures.h"

namespace tessera::report {

// The wide drawing as an SVG file: light colours on white, its legend below, nothing from a page's
// style sheet.
std::string to_svg_file(const Figure& figure);

// A LaTeX float with a tabular of booktabs, for \input. A line of comment says what it needs.
std::string to_latex(const Table& table);
// Text without characters that mean something to LaTeX.
std::string latex_escape(const std::string& text);

}  // namespace tessera::report
