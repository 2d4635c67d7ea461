// SPDX-License-Identifier: MIT
#pragma once
// Notice what should not happen in a run: losses that jump, ranks that keep the others waiting.
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

namespace tessera::metrics {

// A loss is a spike when it stands above the median of the last 50 by more than 8 times their
// spread (the median distance from it, scaled to the deviation of a normal distribution) and by
// more than a quarter of it; the first 20 only teach. Of several spikes in a row the first counts.
class SpikeWatch {
 public:
  // The median it stands above; nothing for a usual loss. Losses that are not finite are no
  // business of this.
  std::optional<double> add(double loss);

 private:
  std::deque<double> last_;
  bool spiking_ = false;
};

// A rank straggles when it has worked more than 1.5 times as long as the median of the others,
// and 10 ms longer, for 10 steps in a row.
class StragglerWatch {
 public:
  struct Straggler {
    int64_t rank = 0;
    double ratio = 0;  // of its time to the median's, in the last of the steps
  };
  // Seconds of work of each rank in a step, waiting left out. Says each straggler once.
  std::optional<Straggler> add(std::span<const double> work_s);

 private:
  int64_t rank_ = -1, steps_ = 0;
};

}  // namespace tessera::metrics
