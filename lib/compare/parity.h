// SPDX-License-Identifier: MIT
#pragma once
// Did a run compute the same numbers as the reference run?
#include <string>

#include "lib/compare/run_result.h"

namespace tessera::programs {

struct Parity {
  double loss = 0, grad_norm = 0, parameters = 0;  // largest relative difference
  std::string worst_parameter;
  std::string mismatch;  // why the runs cannot be compared at all; "" when they can
  bool pass = false;
};

// Losses and gradient norms step by step, |a - b| / |b|; parameters of final/, where both have it,
// block by block (and module by module outside of blocks), ||a - b|| / ||b||. Tensor by tensor
// would not do: Adam divides by the gradient's size, so the rounding noise of an element with a
// small gradient moves it by much of a step, which in a bias that began at zero is 1e-5 of all
// there is. The key part of fused biases is left out: its gradient is zero in exact arithmetic, so
// Adam makes full steps of noise.
Parity compare_runs(const RunResult& run, const RunResult& reference, double tolerance);

// The tolerance for runs in this dtype: 1e-5 in fp32, 2e-2 in 16 bit.
double default_tolerance(const std::string& dtype);

}  // namespace tessera::programs
