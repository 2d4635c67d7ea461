// SPDX-License-Identifier: MIT
#include "lib/report/svg.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "lib/core/number_text.h"
#include "tessera/core/error.h"

namespace tessera::report {
namespace {

constexpr double kLargest = 1e300, kSmallest = 1e-300;
// Relative width below which a range counts as one value, since its ticks would be equal.
constexpr double kNarrowest = 1e-9;

// A coordinate with tenths of a pixel.
std::string px(double value) {
  constexpr double kFar = 1e6;
  std::string text = printed("%.1f", std::isnan(value) ? 0 : std::clamp(value, -kFar, kFar));
  if (text.ends_with(".0")) text.erase(text.size() - 2);
  return text == "-0" ? "0" : text;
}

std::string hint_of(const std::string& hint) {
  return hint.empty() ? "" : concat("<title>", html_escape(hint), "</title>");
}

size_t characters(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

std::string html_escape(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

bool is_drawn(double value) { return std::abs(value) <= kLargest; }

std::vector<double> round_ticks(double low, double high, int most) {
  if (!is_drawn(low) || !is_drawn(high)) return {0, 1};
  const double largest = std::max(std::abs(low), std::abs(high));
  // A single value: widens the range around it.
  if (high - low <= std::max(kNarrowest * largest, kSmallest)) {
    const double around = largest <= kSmallest ? 1 : largest / 2;
    low -= around;
    high = std::max(low, high) + around;
  }
  const double least = (high - low) / std::max(1, most - 1);
  const double power = std::pow(10, std::floor(std::log10(least)));
  double distance = 10 * power;
  for (const double factor : {5.0, 2.5, 2.0, 1.0}) {
    if (factor * power >= least) distance = factor * power;
  }
  const double first = std::floor(low / distance + 1e-9), last = std::ceil(high / distance - 1e-9);
  // Integer counter: beyond 2^53 adding one changes nothing.
  const int count = static_cast<int>(std::clamp(last - first, 1.0, 2.0 * std::max(2, most)));
  std::vector<double> ticks;
  for (int i = 0; i <= count; ++i) ticks.push_back((first + i) * distance);
  return ticks;
}

std::vector<std::string> tick_texts(const std::vector<double>& ticks) {
  double largest = 0;
  for (const double tick : ticks) largest = std::max(largest, std::abs(tick));
  struct Unit {
    double scale;
    const char* name;
  };
  Unit unit{1, ""};
  for (const Unit& one : {Unit{1e3, "k"}, Unit{1e6, "M"}, Unit{1e9, "G"}}) {
    if (largest >= 10 * one.scale || (largest >= one.scale && one.scale > 1e3)) unit = one;
  }
  // Beyond the unit prefixes, or below nine decimals.
  const bool scientific = largest >= 1e13 || (largest < 1e-6 && largest > 0);
  int decimals = 0;
  double step = ticks.size() > 1 ? (ticks[1] - ticks[0]) / unit.scale : 1;
  for (; decimals < 9 && std::abs(step - std::round(step)) > 1e-6 * step; step *= 10) ++decimals;
  std::vector<std::string> texts;
  for (const double tick : ticks) {
    const bool zero = std::abs(tick) < 1e-9 * largest || tick == 0;
    texts.push_back(zero         ? "0"
                    : scientific ? printed("%.3g", tick)
                                 : printed("%.*f%s", decimals, tick / unit.scale, unit.name));
  }
  return texts;
}

Points thinned(const Points& points, int columns) {
  Points known;
  for (size_t i = 0; i < points.x.size(); ++i) {
    if (!is_drawn(points.y[i]) || !is_drawn(points.x[i])) continue;
    known.x.push_back(points.x[i]);
    known.y.push_back(points.y[i]);
  }
  const size_t count = known.x.size();
  if (count <= 4 * static_cast<size_t>(columns)) return known;
  const double low = known.x.front(), width = (known.x.back() - low) / columns;
  Points kept;
  for (size_t begin = 0; begin < count;) {
    const auto column = [&](size_t i) {
      return std::min(columns - 1.0, std::floor((known.x[i] - low) / width));
    };
    size_t end = begin;
    while (end < count && column(end) == column(begin)) ++end;
    const auto first = known.y.begin();
    const auto from = first + static_cast<std::ptrdiff_t>(begin);
    const auto to = first + static_cast<std::ptrdiff_t>(end);
    const auto [least, most] = std::minmax_element(from, to);
    std::vector<size_t> chosen{begin, static_cast<size_t>(least - first),
                               static_cast<size_t>(most - first), end - 1};
    std::ranges::sort(chosen);
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    for (const size_t i : chosen) {
      kept.x.push_back(known.x[i]);
      kept.y.push_back(known.y[i]);
    }
    begin = end;
  }
  return kept;
}

Svg::Svg(double width, double height, const std::string& title, const std::string& description)
    : text_(concat("<svg viewBox=\"0 0 ", px(width), " ", px(height), "\" role=\"img\"><title>",
                   html_escape(title), "</title><desc>", html_escape(description), "</desc>\n")) {}

void Svg::line(double x1, double y1, double x2, double y2, const std::string& classes) {
  text_ += concat("<path class=\"", classes, "\" d=\"M", px(x1), " ", px(y1), "L", px(x2), " ",
                  px(y2), "\"/>\n");
}

void Svg::polyline(const Points& points, const std::string& classes) {
  if (points.x.empty()) return;
  text_ += concat("<path class=\"", classes, "\" d=\"");
  for (size_t i = 0; i < points.x.size(); ++i) {
    text_ += concat(i == 0 ? "M" : i == 1 ? "L" : " ", px(points.x[i]), " ", px(points.y[i]));
  }
  text_ += "\"/>\n";
}

void Svg::rect(double x, double y, double width, double height, const std::string& classes,
               const std::string& hint) {
  text_ += concat("<rect class=\"", classes, "\" x=\"", px(x), "\" y=\"", px(y), "\" width=\"",
                  px(width), "\" height=\"", px(height), "\">", hint_of(hint), "</rect>\n");
}

void Svg::circle(double x, double y, double radius, const std::string& classes,
                 const std::string& hint) {
  text_ += concat("<circle class=\"", classes, "\" cx=\"", px(x), "\" cy=\"", px(y), "\" r=\"",
                  px(radius), "\">", hint_of(hint), "</circle>\n");
}

void Svg::text(double x, double y, Anchor anchor, const std::string& classes,
               const std::string& content) {
  const char* name = anchor == Anchor::kStart ? "start" : anchor == Anchor::kEnd ? "end" : "middle";
  text_ += concat("<text class=\"", classes, "\" x=\"", px(x), "\" y=\"", px(y),
                  "\" text-anchor=\"", name, "\">", html_escape(content), "</text>\n");
}

double text_width(const std::string& text) {
  constexpr double kCharacter = 6.7;  // average width at 12 px in a sans-serif face
  return kCharacter * static_cast<double>(characters(text));
}

}  // namespace tessera::report
