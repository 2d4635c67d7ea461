// SPDX-License-Identifier: MIT
#pragma once
// --profile: phases of a step, and times of its kernels or operators.
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
  std::string name;  // name of the row
  at::ScalarType precision = at::kFloat;
  // Prepares rows for so many steps; returns a function that runs the steps and synchronises.
  std::function<std::function<std::vector<TimedStep>()>(int64_t steps)> prepare;
};

// Profile of one rank.
struct StepProfile {
  std::string name;
  int ranks = 1;
  int steps = 0;  // number of steps in the means
  bool on_gpu = false;
  StepPhases phases;
  double profiled_step_s = 0;  // separate steps, with the profiler on
  double covered_s = 0;  // part of profiled_step_s with at least one kernel or operator running
  std::vector<KernelRow> rows;
  Ceilings ceilings;
};

// Profile for readers and for programs; lines end with '\n' except the last.
std::string profile_text(const StepProfile& profile);
std::string profile_json(const StepProfile& profile);

// Rates of matrix products in this precision and of memory; 0 for an unknown device.
Ceilings ceilings_of(const std::string& device_name, at::ScalarType precision);

// Measures phases without the profiler, then kernels in as many steps with it. Collective; the
// first rank prints.
void profile_steps(const ProfiledWork& work);

}  // namespace tessera::bench
