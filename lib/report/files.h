// SPDX-License-Identifier: MIT
#pragma once
// Plots and tables as separate files for papers and slides.
#include <string>

#include "lib/report/figures.h"

namespace tessera::report {

// The wide drawing as a self-contained SVG file: light colours on white, legend below.
std::string to_svg_file(const Figure& figure);

// A LaTeX float with a booktabs tabular, for \input. A comment line names its packages.
std::string to_latex(const Table& table);
// Escapes characters special to LaTeX.
std::string latex_escape(const std::string& text);

}  // namespace tessera::report
