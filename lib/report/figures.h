// SPDX-License-Identifier: MIT
#pragma once
// Which plots a set of runs fills, each with the table of its numbers.
#include <string>
#include <vector>

#include "lib/report/charts.h"
#include "lib/report/tables.h"

namespace tessera::report {

struct LegendEntry {
  std::string name, classes;  // of its swatch
};

struct Figure {
  std::string id, title, about;
  std::string wide, narrow;  // SVG
  std::vector<LegendEntry> legend;
  bool numbered = false;  // the narrow drawing names its lines by their place in the legend
  std::vector<std::string> notes;  // of the marks
  Table table;
};

std::vector<Figure> make_figures(const Study& study);

// Of one row a run, stacked: bytes by category of the rank that holds most.
Figure memory_figure(const Study& study);
Figure phases_figure(const Study& study);
Figure rate_figure(const Study& study);
Figure scaling_figure(const Study& study);

}  // namespace tessera::report
