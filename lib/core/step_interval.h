// SPDX-License-Identifier: MIT
#pragma once
// Every how many steps something happens, as transformers reads it.
#include <cmath>
#include <cstdint>

namespace tessera {

struct StepInterval {
  int64_t steps = 0;
  double share = 0;  // of all steps, below 1; 0: `steps` counts

  // A number of steps, also where it is a share: rounded up, so never 0.
  int64_t of(int64_t all_steps) const {
    return share > 0 ? static_cast<int64_t>(std::ceil(static_cast<double>(all_steps) * share))
                     : steps;
  }
  bool is_never() const { return share == 0 && steps < 0; }
};

}  // namespace tessera
