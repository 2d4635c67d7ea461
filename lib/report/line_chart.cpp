// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lib/report/charts.h"
#include "tessera/core/error.h"

namespace tessera::report {
namespace {

constexpr double kTop = 26, kBottom = 40, kLabelHeight = 14;

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double value) {
    if (!is_drawn(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

// Positions of labels: near their lines' ends without overlap.
std::vector<double> spread_out(std::vector<double> wanted, double top, double bottom) {
  std::vector<size_t> order(wanted.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return wanted[i]; });
  double free = top;
  for (const size_t i : order) {
    wanted[i] = std::max(wanted[i], free);
    free = wanted[i] + kLabelHeight;
  }
  double most = bottom;
  for (auto i = order.rbegin(); i != order.rend(); ++i) {
    wanted[*i] = std::min(wanted[*i], most);
    most = wanted[*i] - kLabelHeight;
  }
  return wanted;
}

struct Frame {
  Scale x, y;
  std::vector<double> x_ticks, y_ticks;
};

double distance_of(const std::vector<double>& ticks) { return ticks[1] - ticks[0]; }

Frame frame_of(const LineChart& chart, double left, double right, double height, Screen screen) {
  Range x, y;
  for (const Line& line : chart.lines) {
    for (const Points* points : {&line.points, &line.marks}) {
      for (size_t i = 0; i < points->x.size(); ++i) {
        if (!is_drawn(points->x[i]) || !is_drawn(points->y[i])) continue;
        x.add(points->x[i]);
        y.add(points->y[i]);
      }
    }
  }
  if (chart.from_zero) y.add(0);
  Frame frame;
  frame.y_ticks = round_ticks(y.low, y.high, 6);
  frame.x_ticks = round_ticks(x.low, x.high, screen == Screen::kWide ? 9 : 5);
  if (chart.whole_x && distance_of(frame.x_ticks) < 1) {
    frame.x_ticks.clear();  // some are more than one apart, as there are fewer than 16
    const double first = std::floor(x.low);
    const int count = static_cast<int>(std::clamp(std::ceil(x.high) - first, 1.0, 16.0));
    for (int i = 0; i <= count; ++i) frame.x_ticks.push_back(first + i);
  }
  if (chart.whole_x) std::erase_if(frame.x_ticks, [](double at) { return at != std::round(at); });
  // The x axis ends at its values, the y axis at its ticks.
  frame.x = {x.low, std::max(x.high, x.low), left, right};
  std::erase_if(frame.x_ticks, [&](double at) { return at < x.low || at > x.high; });
  frame.y = {frame.y_ticks.front(), frame.y_ticks.back(), height - kBottom, kTop};
  return frame;
}

void draw_frame(Svg& svg, const LineChart& chart, const Frame& frame, double height) {
  const std::vector<std::string> y_texts = tick_texts(frame.y_ticks),
                                 x_texts = tick_texts(frame.x_ticks);
  for (size_t i = 0; i < frame.y_ticks.size(); ++i) {
    const double y = frame.y(frame.y_ticks[i]);
    svg.line(frame.x.from, y, frame.x.to, y, frame.y_ticks[i] == 0 ? "axis" : "grid");
    svg.text(frame.x.from - 6, y + 4, Svg::Anchor::kEnd, "tick", y_texts[i]);
  }
  const double floor = frame.y.from;
  svg.line(frame.x.from, floor, frame.x.to, floor, "axis");
  for (size_t i = 0; i < frame.x_ticks.size(); ++i) {
    const double x = frame.x(frame.x_ticks[i]);
    svg.line(x, floor, x, floor + 4, "axis");
    svg.text(x, floor + 17, Svg::Anchor::kMiddle, "tick", x_texts[i]);
  }
  svg.text(0, 12, Svg::Anchor::kStart, "unit", chart.y_title);
  svg.text(frame.x.to, height - 4, Svg::Anchor::kEnd, "unit", chart.x_title);
}

Points in_pixels(const Points& points, const Frame& frame) {
  const Points few = thinned(points, static_cast<int>(frame.x.to - frame.x.from));
  Points pixels;
  for (size_t i = 0; i < few.x.size(); ++i) {
    pixels.x.push_back(frame.x(few.x[i]));
    pixels.y.push_back(frame.y(few.y[i]));
  }
  return pixels;
}

}  // namespace

std::string draw(const LineChart& chart, Screen screen) {
  const bool wide = screen == Screen::kWide;
  const double width = width_of(screen), height = wide ? 340 : 260;
  const auto named = std::ranges::count_if(chart.lines, [](const Line& l) { return !l.ideal; });
  // On narrow screens line ends show legend numbers.
  const bool labels = static_cast<double>(named) * kLabelHeight <= height - kTop - kBottom;
  double widest = 0;
  for (const Line& line : chart.lines) {
    if (!line.ideal) widest = std::max(widest, text_width(line.name));
  }
  const double margin = !labels || named < 2 ? 18 : wide ? std::min(widest + 18, 260.0) : 22;
  const double left = wide ? 58 : 46;
  const Frame frame = frame_of(chart, left, width - margin, height, screen);
  Svg svg(width, height, chart.title, chart.y_title + " over " + chart.x_title);
  draw_frame(svg, chart, frame, height);
  std::vector<double> ends;
  std::vector<const Line*> ended;
  for (const Line& line : chart.lines) {
    const Points pixels = in_pixels(line.points, frame);
    svg.polyline(pixels, line.ideal ? "ideal" : stroke_class(line.color));
    const Points marks = in_pixels(line.marks, frame);
    for (size_t i = 0; i < marks.x.size(); ++i) {
      svg.circle(marks.x[i], marks.y[i], 3.5, fill_class(line.color) + " dot", line.name);
    }
    if (line.ideal || (pixels.y.empty() && marks.y.empty())) continue;
    ends.push_back(pixels.y.empty() ? marks.y.back() : pixels.y.back());
    ended.push_back(&line);
  }
  if (!labels || named < 2) return svg.finish();
  const std::vector<double> places = spread_out(ends, kTop + 4, height - kBottom);
  for (size_t i = 0; i < ended.size(); ++i) {
    const int number = static_cast<int>(ended[i] - chart.lines.data());
    svg.text(frame.x.to + 8, places[i] + 4, Svg::Anchor::kStart,
             "end " + fill_class(ended[i]->color),
             wide ? ended[i]->name : std::to_string(number + 1));
  }
  return svg.finish();
}

std::string stroke_class(int color) {
  return concat("line s", color % kColors + 1, color >= kColors ? " dashed" : "");
}

std::string fill_class(int color) { return concat("f", color % kColors + 1); }

}  // namespace tessera::report
