// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/report/charts.h"
#include "tessera/core/error.h"

namespace tessera::report {
namespace {

constexpr double kAxis = 38, kMarker = 4;

double sum_of(const Bar& bar) { return std::accumulate(bar.parts.begin(), bar.parts.end(), 0.0); }

double end_of(const Bar& bar) {
  return std::max(sum_of(bar) + bar.spread.value_or(0), bar.marker.value_or(0));
}

std::string shortened(const std::string& name, double width) {
  if (text_width(name) <= width + 1) return name;
  std::string text = name;
  while (!text.empty() && text_width(text) > width - 8) {
    do text.pop_back();
    while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xC0) == 0x80);
  }
  return text + "…";
}

}  // namespace

std::string draw(const BarChart& chart, Screen screen) {
  const bool wide = screen == Screen::kWide;
  double names = 0, labels = 0, most = 0;
  for (const Bar& bar : chart.bars) {
    names = std::max(names, text_width(bar.name));
    labels = std::max(labels, text_width(bar.label));
    most = std::max(most, end_of(bar));
  }
  // Names are left of their bars, or above them where there is no space.
  const double width = width_of(screen), left = wide ? std::min(names + 12, 260.0) : 4;
  const double pitch = wide ? 26 : 40, thick = 16, top = 4, first = wide ? 4.0 : 20.0;
  const double floor = top + pitch * static_cast<double>(chart.bars.size());
  const std::vector<double> ticks = round_ticks(0, most > 0 ? most : 1, wide ? 8 : 5);
  const Scale x{0, ticks.back(), left, width - 14};
  Svg svg(width, floor + kAxis, chart.title, chart.x_title);
  const std::vector<std::string> texts = tick_texts(ticks);
  for (size_t i = 0; i < ticks.size(); ++i) {
    const double at = x(ticks[i]);
    const bool last = i + 1 == ticks.size();
    svg.line(at, top, at, floor, i == 0 ? "axis" : "grid");
    svg.text(at, floor + 16,
             i == 0 ? Svg::Anchor::kStart
             : last ? Svg::Anchor::kEnd
                    : Svg::Anchor::kMiddle,
             "tick", texts[i]);
  }
  svg.text(width - 14, floor + kAxis - 6, Svg::Anchor::kEnd, "unit", chart.x_title);
  for (size_t i = 0; i < chart.bars.size(); ++i) {
    const Bar& bar = chart.bars[i];
    const double y = top + pitch * static_cast<double>(i) + first;
    const std::string classes = bar.is_baseline ? "name strong" : "name";
    if (wide) {
      svg.text(left - 8, y + 12, Svg::Anchor::kEnd, classes, shortened(bar.name, left - 12));
    } else {
      svg.text(left + 5, y - 5, Svg::Anchor::kStart, classes,
               shortened(bar.name, width - left - 20));
    }
    double from = 0;
    for (size_t part = 0; part < bar.parts.size(); ++part) {
      const double size = bar.parts[part];
      if (!(size > 0)) continue;
      svg.rect(x(from), y, x(from + size) - x(from), thick, fill_class(chart.colors[part]) + " bar",
               concat(bar.name, ", ", chart.categories[part], ": ", size));
      from += size;
    }
    double after = x(from);
    if (bar.spread) {
      svg.line(x(from - *bar.spread), y + thick / 2, x(from + *bar.spread), y + thick / 2,
               "whisker");
      for (const double side : {-*bar.spread, *bar.spread}) {
        svg.line(x(from + side), y + 4, x(from + side), y + thick - 4, "whisker");
      }
      after = std::max(after, x(from + *bar.spread));
    }
    if (bar.marker) {
      svg.line(x(*bar.marker), y - kMarker, x(*bar.marker), y + thick + kMarker, "marker");
      after = std::max(after, x(*bar.marker));
    }
    // Right of the bar, or inside it at the drawing's edge.
    const double text = text_width(bar.label);
    const bool outside = after + 6 + text <= width;
    svg.text(outside ? after + 6 : x(from) - 6, y + 12,
             outside ? Svg::Anchor::kStart : Svg::Anchor::kEnd, outside ? "value" : "value inside",
             bar.label);
  }
  return svg.finish();
}

}  // namespace tessera::report
