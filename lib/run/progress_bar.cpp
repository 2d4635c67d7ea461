// SPDX-License-Identifier: MIT
#include "lib/run/progress_bar.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <utility>

#include "lib/core/clock.h"
#include "tessera/metrics/sink.h"

namespace tessera::programs {
namespace {

constexpr double kQuiet_s = 0.5, kBetween_s = 0.1;

}  // namespace

std::string progress_text(const std::string& title, double share, double left_s) {
  const std::string text = title + " " + metrics::bar_text(share);
  if (left_s < 0) return text;
  const long long left = std::llround(left_s);
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "  %lld:%02lld left", left / 60, left % 60);
  return text + numbers;
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
  const double left_s = share > 0 ? (now - begin_s_) * (1 - share) / share : -1;
  std::fprintf(stderr, "\r\033[K%s", progress_text(title_, share, left_s).c_str());
  std::fflush(stderr);
}

}  // namespace tessera::programs
