// SPDX-License-Identifier: MIT
#pragma once
// How far work has come, on a terminal.
#include <cstddef>
#include <string>
#include <utility>

namespace tessera::programs {

// One line on standard error, drawn over itself some ten times a second once the work has taken
// half a second, and wiped out at the end; nothing where standard error is no terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::string title);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void operator()(double share);
  void retitle(std::string title) { title_ = std::move(title); }
  void wipe();  // before something else is written; drawn again later

 private:
  std::string title_;
  bool terminal_;
  bool drawn_ = false;
  double begin_s_, last_s_;
};

// "title [####......]  40 %  0:12 left"; `left_s` is negative where it is not known. At most
// `width` columns: the bar gets shorter, then the title loses its beginning; 0: no limit.
std::string progress_text(const std::string& title, double share, double left_s, size_t width = 0);

}  // namespace tessera::programs
