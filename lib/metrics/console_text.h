// SPDX-License-Identifier: MIT
#pragma once
// What the console says of events, as text.
#include <string>
#include <utility>
#include <vector>

#include "tessera/metrics/event.h"

namespace tessera::metrics {

struct TextRow {
  std::string title, text;
};

// What of a line is left out first where the window is narrow: the part with the smallest `weight`.
struct TextPart {
  std::string text;
  int weight = 0;
};
// With two blanks between them, at most `width` columns; without limit where it is 0.
std::string fitted(std::vector<TextPart> parts, size_t width);

// Steps since the last line, which share one.
struct StepSums {
  double time_s = 0, tokens = 0, steps = 0;
};

std::string step_line(const Event& step, double total_steps, const StepSums& sums, size_t width);
std::string eval_line(const Event& eval);
std::vector<TextRow> found_rows(const Event& run_start);
std::string end_line(const Event& run_end);
// steps: those that were trained before run_end; empty where there were none.
std::vector<TextRow> end_rows(const Event& run_end, const Event& last_eval);

// Below a head: titles in a column, texts beside them. width: 0 leaves long texts whole.
std::string rows_text(const std::vector<TextRow>& rows, size_t width, bool colours);

std::string clock_text(double seconds);  // "1:02:03"
std::string seconds_text(double seconds);
std::string count_text(double number);                      // "12.3k"
std::string mebibytes_text(double bytes);                   // "123 MiB"
std::string formatted(const char* pattern, double number);  // a NaN has no sign

}  // namespace tessera::metrics
