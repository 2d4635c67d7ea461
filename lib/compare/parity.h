// SPDX-License-Identifier: MIT
#pragma once
// Numerical parity of a run with its reference run.
#include <string>

#include "lib/compare/run_result.h"

namespace tessera::programs {

struct Parity {
  double loss = 0, grad_norm = 0, parameters = 0;  // largest relative differences
  std::string worst_parameter;
  std::string mismatch;  // why the runs cannot be compared; "" if they can
  bool pass = false;
};

// Losses and gradient norms by step, |a - b| / |b|. Parameters of final/, if both have it, by block
// (by module outside of blocks), ||a - b|| / ||b||. A comparison by tensor would fail: Adam divides
// by the gradient's size, so rounding noise of a tiny gradient moves an element by much of a step.
// In a bias that started at zero that is 1e-5 of the whole. The key part of fused biases is left
// out: its exact gradient is zero, so Adam makes full steps of noise.
Parity compare_runs(const RunResult& run, const RunResult& reference, double tolerance);

// Default tolerance by dtype: 1e-5 in fp32, 2e-2 in 16 bits.
double default_tolerance(const std::string& dtype);

}  // namespace tessera::programs
