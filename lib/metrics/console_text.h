// SPDX-License-Identifier: MIT
#pragma once
// Text of events on the console.
#include <string>
#include <utility>
#include <vector>

#include "tessera/metrics/event.h"

namespace tessera::metrics {

struct TextRow {
  std::string title, text;
};

// A part of a line; in a narrow window the part of smallest `weight` is dropped first.
struct TextPart {
  std::string text;
  int weight = 0;
};
// Parts joined by two spaces, at most `width` columns; 0: no limit.
std::string fitted(std::vector<TextPart> parts, size_t width);

// Sums over steps since the last line.
struct StepSums {
  double time_s = 0, tokens = 0, steps = 0;
};

std::string step_line(const Event& step, double total_steps, const StepSums& sums, size_t width);
std::string eval_line(const Event& eval);
std::vector<TextRow> found_rows(const Event& run_start);
std::string end_line(const Event& run_end);
// steps: statistics of the steps before run_end; empty if there were none.
std::vector<TextRow> end_rows(const Event& run_end, const Event& last_eval);

// Lines below a heading: titles in a column, texts beside them. width 0: no wrapping.
std::string rows_text(const std::vector<TextRow>& rows, size_t width, bool colours);

std::string clock_text(double seconds);  // "1:02:03"
std::string seconds_text(double seconds);
std::string count_text(double number);                      // "12.3k"
std::string mebibytes_text(double bytes);                   // "123 MiB"
std::string formatted(const char* pattern, double number);  // prints NaN without a sign

}  // namespace tessera::metrics
