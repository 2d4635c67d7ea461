// SPDX-License-Identifier: MIT
#pragma once
// Parts of plots: scales, ticks, and a drawing that uses the page's style sheet.
#include <string>
#include <string_view>
#include <vector>

namespace tessera::report {

// Escapes text between tags and in attributes.
std::string html_escape(std::string_view text);

// False for infinities, NaN and values beyond 1e300.
bool is_drawn(double value);

// Round numbers (spaced 1, 2, 2.5 or 5 times a power of ten) that cover [low, high], about `most`
// of them. At least two, at most 2 * most + 1. Values nearly equal in double precision count as
// one.
std::vector<double> round_ticks(double low, double high, int most);
// Tick labels such as "0.25", "12k", "3.5M": one unit, with as many decimals as needed.
std::vector<std::string> tick_texts(const std::vector<double>& ticks);

// Linear map from values to pixels.
struct Scale {
  double low = 0, high = 1, from = 0, to = 1;
  double operator()(double value) const {
    return from + (value - low) / (high > low ? high - low : 1) * (to - from);
  }
};

struct Points {
  std::vector<double> x, y;
};
// At most four points per `columns`-th of the x range: first, least, greatest and last, so that the
// drawing looks the same. Omits points that are not drawn. x must not decrease.
Points thinned(const Points& points, int columns);

class Svg {
 public:
  // title and description are for screen readers.
  Svg(double width, double height, const std::string& title, const std::string& description);

  void line(double x1, double y1, double x2, double y2, const std::string& classes);
  void polyline(const Points& points, const std::string& classes);  // in pixels
  // hint: shown under the pointer; may be "".
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

// Approximate width of a text in the plots' size.
double text_width(const std::string& text);

}  // namespace tessera::report
