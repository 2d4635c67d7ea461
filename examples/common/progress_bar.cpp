#include "examples/common/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "tessera/core/clock.h"

namespace tessera::programs {
namespace {

constexpr double kQuiet_s = 0.5, kBetween_s = 0.1;

}  // namespace

std::string progress_text(const std::string& title, double share, double left_s) {
  constexpr int kWidth = 30;
  const double done = std::clamp(share, 0.0, 1.0);
  const auto filled = static_cast<size_t>(done * kWidth);
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "] %3.0f %%", done * 100);
  std::string text = title + " [" + std::string(filled, '#') + std::string(kWidth - filled, '.');
  text += numbers;
  if (left_s < 0) return text;
  const long long left = std::llround(left_s);
  std::snprintf(numbers, sizeof numbers, "  %lld:%02lld left", left / 60, left % 60);
  return text + numbers;
}

ProgressBar::ProgressBar(std::string title)
    : title_(std::move(title)),
      terminal_(isatty(STDERR_FILENO) == 1),
      begin_s_(now_s()),
      last_s_(begin_s_) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputs("\r\033[K", stderr);
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
