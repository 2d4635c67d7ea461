// SPDX-License-Identifier: MIT
#pragma once
// Two kinds of plots, lines over a quantity and stacked bars, each drawn for wide and narrow
// screens.
#include <optional>
#include <string>
#include <vector>

#include "lib/report/svg.h"

namespace tessera::report {

enum class Screen { kWide, kNarrow };
constexpr double width_of(Screen screen) { return screen == Screen::kWide ? 860 : 358; }

struct Line {
  std::string name;
  int color = 0;  // dashed beyond the palette's end
  Points points;
  Points marks;        // drawn as dots in the same colour
  bool ideal = false;  // the ideal: thin and dashed, without a legend entry
};

struct LineChart {
  std::string title, x_title, y_title;  // with units
  std::vector<Line> lines;
  bool from_zero = false;
  bool whole_x = true;  // integer ticks only
};

struct Bar {
  std::string name;
  std::vector<double> parts;             // one per category
  std::string label;                     // value shown at its end
  std::optional<double> marker, spread;  // marker: a line across; spread: a whisker around the end
  bool is_baseline = false;
};

struct BarChart {
  std::string title, x_title;
  std::vector<std::string> categories;  // a single one has no legend
  std::vector<int> colors;
  std::vector<Bar> bars;
  std::string marker_name;
};

std::string draw(const LineChart& chart, Screen screen);
std::string draw(const BarChart& chart, Screen screen);

// Style classes of a line and an area in this colour.
std::string stroke_class(int color);
std::string fill_class(int color);
constexpr int kColors = 8;

}  // namespace tessera::report
