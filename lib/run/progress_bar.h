// SPDX-License-Identifier: MIT
#pragma once
// Progress bar on a terminal.
#include <cstddef>
#include <string>
#include <utility>

namespace tessera::programs {

// One line on standard error, redrawn about ten times a second after the first half second, and
// erased at the end. Silent if standard error is not a terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::string title);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void operator()(double share);
  void retitle(std::string title) { title_ = std::move(title); }
  void wipe();  // call before other output; redrawn later

 private:
  std::string title_;
  bool terminal_;
  bool drawn_ = false;
  double begin_s_, last_s_;
};

// "title [####......]  40 %  0:12 left"; left_s < 0: unknown. At most `width` columns (0: no
// limit): the bar shrinks first, then the title loses its start.
std::string progress_text(const std::string& title, double share, double left_s, size_t width = 0);

}  // namespace tessera::programs
