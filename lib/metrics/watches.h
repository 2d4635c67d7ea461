// SPDX-License-Identifier: MIT
#pragma once
// Detection of anomalies: loss spikes and straggling ranks.
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

namespace tessera::metrics {

// A spike exceeds the median of the last 50 losses by 8 times their spread, and by a quarter of the
// median. Spread: median absolute deviation, scaled to a normal distribution's. The first 20 losses
// never count; consecutive spikes count once.
class SpikeWatch {
 public:
  // The median if the loss is a spike, else empty. Ignores non-finite losses.
  std::optional<double> add(double loss);

 private:
  std::deque<double> last_;
  bool spiking_ = false;
};

// A straggler works more than 1.5 times as long as the median of the others, and 10 ms longer, for
// 10 consecutive steps.
class StragglerWatch {
 public:
  struct Straggler {
    int64_t rank = 0;
    double ratio = 0;  // its time over the median, in the last step
  };
  // work_s: seconds of work by rank in a step, without waiting. Reports each straggler once.
  std::optional<Straggler> add(std::span<const double> work_s);

 private:
  int64_t rank_ = -1, steps_ = 0;
};

}  // namespace tessera::metrics
