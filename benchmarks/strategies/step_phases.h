// SPDX-License-Identifier: MIT
#pragma once
// Phases of a step's time, which sum to the step.
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/phase_clock.h"

namespace tessera::bench {

struct TimedStep {
  double step_s = 0;  // from the previous step's end, or a synchronisation, to its own end
  double data_s = 0;  // time that the host waited for rows
  PhaseTimes phases;
};

struct StepPhases {
  struct Part {
    std::string name;
    double seconds = 0;
  };
  double step_s = 0;
  std::vector<Part> parts;         // the last one is the remainder
  std::optional<double> copies_s;  // between host and GPU, beside the parts

  double sum_s() const;
};

// Means over at least one step. On a GPU parts are times of the compute stream, and "host wait" is
// the time between the end of a step and the start of the next. Throws Error(kInternal) if the
// parts exceed the step by more than 1 %, i.e. the clock counts twice.
StepPhases phases_of(const std::vector<TimedStep>& steps, bool on_gpu);

}  // namespace tessera::bench
