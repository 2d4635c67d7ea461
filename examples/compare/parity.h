#pragma once
// Did a run compute the same numbers as the reference run?
#include <string>

#include "examples/compare/run_result.h"

namespace tessera::programs {

struct Parity {
  double loss = 0, grad_norm = 0, parameters = 0;  // largest relative difference
  std::string worst_parameter;
  std::string mismatch;  // why the runs cannot be compared at all; "" when they can
  bool pass = false;
};

// Losses and gradient norms step by step, |a - b| / |b|; each parameter of final/, where both have
// it, by norms, ||a - b|| / ||b||. The key part of BLOOM's fused bias is left out: its gradient is
// zero in exact arithmetic, so Adam makes full steps of rounding noise.
Parity compare_runs(const RunResult& run, const RunResult& reference, double tolerance);

// The tolerance for runs in this dtype: 1e-5 in fp32, 2e-2 in 16 bit.
double default_tolerance(const std::string& dtype);

}  // namespace tessera::programs
