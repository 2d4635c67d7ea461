// SPDX-License-Identifier: MIT
#pragma once
// --profile: the phases of a step, and what its kernels or operators take.
#include <c10/core/ScalarType.h>

#include <functional>
#include <string>
#include <vector>

#include "benchmarks/strategies/kernel_table.h"
#include "benchmarks/strategies/step_phases.h"
#include "tessera/comm/communicator.h"

namespace tessera::bench {

struct ProfiledWork {
  Communicator& world;
  std::string name;  // of the row
  at::ScalarType precision = at::kFloat;
  // Rows for so many steps -> what makes the steps and waits for the device.
  std::function<std::function<std::vector<TimedStep>()>(int64_t steps)> prepare;
};

// Of one rank.
struct StepProfile {
  std::string name;
  int ranks = 1;
  int steps = 0;  // that the times are means of
  bool on_gpu = false;
  StepPhases phases;
  double profiled_step_s = 0;  // of other steps, with the profiler on
  double covered_s = 0;        // of those, with at least one kernel or operator under way
  std::vector<KernelRow> rows;
  Ceilings ceilings;
};

// What a reader and what a program reads; lines end with '\n' but for the last of them.
std::string profile_text(const StepProfile& profile);
std::string profile_json(const StepProfile& profile);

// Of matrix products in this precision and of memory; 0 for a device that is not known.
Ceilings ceilings_of(const std::string& device_name, at::ScalarType precision);

// Collective; the first rank prints. Steps without the profiler give the phases, as many with it
// the kernels.
void profile_steps(const ProfiledWork& work);

}  // namespace tessera::bench
