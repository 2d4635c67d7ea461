// SPDX-License-Identifier: MIT
#pragma once
// Compares an operation with a plain formula: values and all gradients.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

#include "tests/support/test.hpp"

namespace tessera::testing {

using Tensors = std::vector<at::Tensor>;
using Formula = std::function<at::Tensor(const Tensors&)>;

inline at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(true); }

// |a - b| / |b|; 0 if both are zero; any NaN gives NaN, which exceeds every limit.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kCPU, at::kDouble), y = b.to(at::kCPU, at::kDouble);
  REQUIRE(x.sizes() == y.sizes());
  const double norm = y.norm().item<double>(), error = (x - y).norm().item<double>();
  return norm == 0 ? error : error / norm;
}

// Runs both on copies of the inputs with the same random incoming gradient; the formula in fp64.
inline void check_gradients(const Tensors& inputs, const Formula& operation, const Formula& formula,
                            double tolerance) {
  Tensors mine, exact;
  for (const at::Tensor& input : inputs) {
    mine.push_back(leaf(input));
    exact.push_back(leaf(input.to(at::kDouble)));
  }
  const at::Tensor result = operation(mine), expected = formula(exact);
  CHECK(relative_error(result, expected) <= tolerance);
  const at::Tensor gradient = at::randn(result.sizes(), result.options());
  const auto a = torch::autograd::grad({result}, mine, {gradient});
  const auto b = torch::autograd::grad({expected}, exact, {gradient.to(at::kDouble)});
  for (size_t i = 0; i < inputs.size(); ++i) {
    INFO("gradient of input " << i);
    CHECK(relative_error(a[i], b[i]) <= tolerance);
  }
}

}  // namespace tessera::testing
