// SPDX-License-Identifier: MIT
#pragma once
// What a step's time goes to: phases that sum to the step.
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/phase_clock.h"

namespace tessera::bench {

struct TimedStep {
  double step_s = 0;  // from the end of the step before, or of a wait for the device, to its own
  double data_s = 0;  // the host waited for rows
  PhaseTimes phases;
};

struct StepPhases {
  struct Part {
    std::string name;
    double seconds = 0;
  };
  double step_s = 0;
  std::vector<Part> parts;         // the last one is what is in no other
  std::optional<double> copies_s;  // between host and GPU, beside the parts

  double sum_s() const;
};

// Means over the steps, of which there is one at least. On a GPU a part is the time of the
// computing stream, and "host wait" that between the end of a step and the begin of the next.
// Throws Error(kInternal) where the parts exceed the step by more than 1 %: the clock counts twice.
StepPhases phases_of(const std::vector<TimedStep>& steps, bool on_gpu);

}  // namespace tessera::bench
