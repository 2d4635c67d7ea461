// SPDX-License-Identifier: MIT
#include "benchmarks/strategies/step_phases.h"

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera::bench {

double StepPhases::sum_s() const {
  double sum = 0;
  for (const Part& part : parts) sum += part.seconds;
  return sum;
}

StepPhases phases_of(const std::vector<TimedStep>& steps, bool on_gpu) {
  check(!steps.empty(), ErrorCode::kInternal, "phases_of: no step has its times");
  StepPhases result{.parts = {{"forward"},
                              {"backward"},
                              {"communication"},
                              {"optimizer"},
                              {"data"},
                              {"host wait"},
                              {"other"}}};
  const double share = 1.0 / static_cast<double>(steps.size());
  double copies = 0;
  for (const TimedStep& step : steps) {
    const PhaseTimes& phases = step.phases;
    const double in_phases =
        phases.forward_s + phases.backward_s + phases.communication_s + phases.optimizer_s;
    // A busy stream did not wait for the rows for which the host waited.
    const double data = std::clamp(phases.step_s - in_phases, 0.0, step.data_s);
    const double waiting = on_gpu ? std::max(0.0, step.step_s - phases.step_s) : 0;
    const double parts[] = {
        phases.forward_s, phases.backward_s, phases.communication_s, phases.optimizer_s, data,
        waiting};
    for (size_t i = 0; i < std::size(parts); ++i) result.parts[i].seconds += share * parts[i];
    result.step_s += share * step.step_s;
    copies += share * phases.copies_s.value_or(0);
  }
  if (on_gpu) result.copies_s = copies;
  const double sum = result.sum_s();
  constexpr double kMost = 1.01;
  check(sum <= kMost * result.step_s, ErrorCode::kInternal, "the phases of a step take ", sum * 1e3,
        " ms, and the step ", result.step_s * 1e3, " ms; the phase clock counts some time twice");
  result.parts.back().seconds = std::max(0.0, result.step_s - sum);
  return result;
}

}  // namespace tessera::bench
