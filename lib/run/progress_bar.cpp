// SPDX-License-Identifier: MIT
#include "lib/run/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "lib/core/clock.h"
#include "lib/core/integer_of.h"
#include "lib/core/terminal.h"
#include "tessera/metrics/sink.h"

namespace tessera::programs {
namespace {

constexpr double kQuiet_s = 0.5, kBetween_s = 0.1;

}  // namespace

std::string progress_text(const std::string& title, double share, double left_s, size_t width) {
  char left[64] = "";
  if (left_s >= 0) {
    const long long seconds = integer_of(std::round(left_s));
    std::snprintf(left, sizeof left, "  %lld:%02lld left", seconds / 60, seconds % 60);
  }
  std::string bar = " " + metrics::bar_text(share) + left;
  if (width == 0 || title.size() + bar.size() <= width) return title + bar;
  bar = " " + metrics::bar_text(share, /*cells=*/10) + left;
  const size_t room = width - std::min(width, bar.size());
  if (title.size() <= room) return title + bar;
  if (room < 8) return bar.substr(1, width);
  return "..." + title.substr(title.size() - room + 3) + bar;
}

ProgressBar::ProgressBar(std::string title)
    : title_(std::move(title)),
      terminal_(isatty(STDERR_FILENO) == 1),
      begin_s_(now_s()),
      last_s_(begin_s_) {}

ProgressBar::~ProgressBar() { wipe(); }

void ProgressBar::wipe() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

void ProgressBar::operator()(double share) {
  const double now = now_s();
  if (!terminal_ || now - begin_s_ < kQuiet_s || now - last_s_ < kBetween_s) return;
  last_s_ = now;
  drawn_ = true;
  const auto width = static_cast<size_t>(std::max(20, terminal_width(stderr)) - 1);
  const double left_s = share > 0 ? (now - begin_s_) * (1 - share) / share : -1;
  std::fprintf(stderr, "\r\033[K%s", progress_text(title_, share, left_s, width).c_str());
  std::fflush(stderr);
}

}  // namespace tessera::programs
