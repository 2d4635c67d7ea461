// SPDX-License-Identifier: MIT
#pragma once
// The parts of which plots are drawn: scales, ticks, and a drawing that takes its colours from the
// page's style sheet.
#include <string>
#include <string_view>
#include <vector>

namespace tessera::report {

// Text between tags and in attributes.
std::string html_escape(std::string_view text);

// Infinities, what is not a number and what is beyond 1e300 have no place in a plot.
bool is_drawn(double value);

// Round numbers (1, 2, 2.5 or 5 times a power of ten apart) from the last not above `low` to the
// first not below `high`, at most about `most` of them. Two at least, and never more than 2 * most
// + 1. Values that double precision hardly tells apart are one value.
std::vector<double> round_ticks(double low, double high, int most);
// The ticks as text: "0.25", "12k", "3.5M", all in one unit and with as many decimals as they need.
std::vector<std::string> tick_texts(const std::vector<double>& ticks);

// Linear, from values to pixels.
struct Scale {
  double low = 0, high = 1, from = 0, to = 1;
  double operator()(double value) const {
    return from + (value - low) / (high > low ? high - low : 1) * (to - from);
  }
};

struct Points {
  std::vector<double> x, y;
};
// At most four points for each of `columns` equal parts of the x range: first, least, greatest and
// last, so that a drawing of that many pixels looks the same. Points that are not drawn are left
// out. x does not fall.
Points thinned(const Points& points, int columns);

class Svg {
 public:
  // Classes are those of the style sheet. title and description are read aloud.
  Svg(double width, double height, const std::string& title, const std::string& description);

  void line(double x1, double y1, double x2, double y2, const std::string& classes);
  void polyline(const Points& points, const std::string& classes);  // in pixels
  // hint: shown where the pointer rests; may be "".
  void rect(double x, double y, double width, double height, const std::string& classes,
            const std::string& hint);
  void circle(double x, double y, double radius, const std::string& classes,
              const std::string& hint);
  enum class Anchor { kStart, kMiddle, kEnd };
  void text(double x, double y, Anchor anchor, const std::string& classes,
            const std::string& content);
  std::string finish() const { return text_ + "</svg>\n"; }

 private:
  std::string text_;
};

// About how wide a text of the plots' size is.
double text_width(const std::string& text);

}  // namespace tessera::report
