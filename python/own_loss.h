// SPDX-License-Identifier: MIT
#pragma once
// A loss of the caller's, given as a function of the targets' log-probabilities.
#include <ATen/core/Tensor.h>
#include <nanobind/nanobind.h>

#include <vector>

namespace tessera::python {

// Value of a loss, and its derivative by every log-probability.
struct OwnLoss {
  double value = 0;
  std::vector<at::Tensor> gradients;  // fp32, on the CPU, with the log-probabilities' shapes
};

// Calls loss(t), or loss([t, ...]) unless `single`, with tensors of torch that require gradients,
// and runs its backward pass. log_probabilities: fp32 on the CPU. With the GIL; exceptions of
// Python pass through. Throws Error(kInvalidArgument) without torch, and unless the result is a
// scalar that depends on the log-probabilities.
OwnLoss derive(nanobind::handle loss, const std::vector<at::Tensor>& log_probabilities,
               bool single);

}  // namespace tessera::python
