// SPDX-License-Identifier: MIT
#pragma once
// Time that a rank waits for others within a step.
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <optional>
#include <vector>

#include "tessera/backends/pipeline/pipeline.h"

namespace tessera {

// Off by default. Measures waiting of a GPU's current stream, with events that are read late, or of
// the host on the CPU.
class WaitTimer {
 public:
  explicit WaitTimer(at::Device device) : device_(device) {}
  void enable(bool on) { on_ = on; }
  bool enabled() const { return on_; }

  void begin_step();
  void end_step();
  template <typename Wait>
  void time(Wait wait) {
    if (!on_) return wait();
    const size_t begin = mark();
    wait();
    waits_.emplace_back(begin, mark());
  }
  PipelineTimes read() const;  // of the latest step; waits for the device

 private:
  struct Point {
    double host_s = 0;
    std::optional<c10::Event> event;
  };
  size_t mark();
  double seconds(size_t from, size_t to) const;

  at::Device device_;
  bool on_ = false;
  std::vector<Point> points_;  // reused from step to step
  size_t used_ = 0;
  std::vector<std::pair<size_t, size_t>> waits_;
};

}  // namespace tessera
