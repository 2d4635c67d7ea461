// SPDX-License-Identifier: MIT
#pragma once
// Interval between repeated actions in steps, as transformers parses it.
#include <cmath>
#include <cstdint>

namespace tessera {

struct StepInterval {
  int64_t steps = 0;
  double share = 0;  // share of all steps, below 1; 0: use `steps`

  // The interval in steps; a share is rounded up, so it is never 0.
  int64_t of(int64_t all_steps) const {
    return share > 0 ? static_cast<int64_t>(std::ceil(static_cast<double>(all_steps) * share))
                     : steps;
  }
  bool is_never() const { return share == 0 && steps < 0; }
};

}  // namespace tessera
