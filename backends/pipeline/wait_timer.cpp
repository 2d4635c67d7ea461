// SPDX-License-Identifier: MIT
#include "backends/pipeline/wait_timer.h"

#include <chrono>

#include "tessera/core/device.h"

namespace tessera {

size_t WaitTimer::mark() {
  if (used_ == points_.size()) points_.emplace_back();
  Point& point = points_[used_];
  if (device_.is_cpu()) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    point.host_s = std::chrono::duration<double>(now).count();
  } else {
    if (!point.event) point.event.emplace(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    point.event->record(current_stream(device_));
  }
  return used_++;
}

void WaitTimer::begin_step() {
  if (!on_) return;
  used_ = 0;
  waits_.clear();
  mark();
}

void WaitTimer::end_step() {
  if (on_) mark();
}

double WaitTimer::seconds(size_t from, size_t to) const {
  const Point &a = points_[from], &b = points_[to];
  return a.event ? a.event->elapsedTime(*b.event) / 1e3 : b.host_s - a.host_s;
}

PipelineTimes WaitTimer::read() const {
  if (used_ < 2) return {};
  if (points_[used_ - 1].event) points_[used_ - 1].event->synchronize();
  PipelineTimes times{.total_s = seconds(0, used_ - 1)};
  for (const auto& [from, to] : waits_) times.waited_s += seconds(from, to);
  return times;
}

}  // namespace tessera
