// SPDX-License-Identifier: MIT
#pragma once
// Plots of a set of runs, each with a table of its numbers.
#include <string>
#include <vector>

#include "lib/report/charts.h"
#include "lib/report/tables.h"

namespace tessera::report {

struct LegendEntry {
  std::string name, classes;  // classes: of its swatch
};

struct Figure {
  std::string id, title, about;
  std::string wide, narrow;  // SVG
  std::vector<LegendEntry> legend;
  bool numbered = false;           // the narrow drawing labels lines by legend number
  std::vector<std::string> notes;  // notes of the marks
  Table table;
};

std::vector<Figure> make_figures(const Study& study);

// One stacked bar per run: bytes by category on the rank that holds most.
Figure memory_figure(const Study& study);
Figure phases_figure(const Study& study);
Figure rate_figure(const Study& study);
Figure scaling_figure(const Study& study);

}  // namespace tessera::report
