// SPDX-License-Identifier: MIT
#pragma once
// Two kinds of plots: lines over a quantity, and bars of stacked parts. Each is drawn for a wide
// and for a narrow screen.
#include <optional>
#include <string>
#include <vector>

#include "lib/report/svg.h"

namespace tessera::report {

enum class Screen { kWide, kNarrow };
constexpr double width_of(Screen screen) { return screen == Screen::kWide ? 860 : 358; }

struct Line {
  std::string name;
  int color = 0;  // numbers past the palette's end are dashed
  Points points;
  Points marks;        // drawn as dots, in the same colour
  bool ideal = false;  // what would be best: thin and dashed, without a name of its own
};

struct LineChart {
  std::string title, x_title, y_title;  // with units
  std::vector<Line> lines;
  bool from_zero = false;
  bool whole_x = true;  // ticks of x at integers only
};

struct Bar {
  std::string name;
  std::vector<double> parts;             // one a category
  std::string label;                     // at its end, the value
  std::optional<double> marker, spread;  // a line across; a whisker to both sides of the end
  bool is_baseline = false;
};

struct BarChart {
  std::string title, x_title;
  std::vector<std::string> categories;  // one only: no legend
  std::vector<int> colors;
  std::vector<Bar> bars;
  std::string marker_name;
};

std::string draw(const LineChart& chart, Screen screen);
std::string draw(const BarChart& chart, Screen screen);

// Classes of a line and of an area in this colour.
std::string stroke_class(int color);
std::string fill_class(int color);
constexpr int kColors = 8;

}  // namespace tessera::report
