// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include "lib/ops/reference.h"

namespace tessera::ops::reference {

at::Tensor with_largest(const at::Tensor& result, at::Tensor* largest) {
  if (largest) *largest = ops::fp8_largest(result.flatten(0, -2), Fp8::kTensorwise);
  return result;
}

at::Tensor linear_gelu_forward(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, at::Tensor* pre_activation) {
  at::Tensor y = reference::linear_forward(x, weight, bias, {}, {});
  if (pre_activation) *pre_activation = y;
  return reference::gelu_tanh_forward(y, nullptr);
}

at::Tensor gelu_tanh_forward(const at::Tensor& x, at::Tensor* largest) {
  return with_largest(at::gelu(x, "tanh"), largest);
}

at::Tensor gelu_tanh_backward(const at::Tensor& gradient, const at::Tensor& x) {
  return at::gelu_backward(gradient, x, "tanh");
}

void gelu_tanh_backward_(const at::Tensor& gradient, const at::Tensor& pre_activation,
                         const at::Tensor& bias_gradient, ColumnSums& sums, at::Tensor* output,
                         at::Tensor* largest) {
  gradient.copy_(reference::gelu_tanh_backward(gradient, pre_activation));
  if (bias_gradient.defined()) reference::linear_backward_bias(gradient, bias_gradient, sums);
  if (output) *output = reference::gelu_tanh_forward(pre_activation, nullptr);
  with_largest(gradient, largest);
}

at::Tensor swiglu_forward(const at::Tensor& gate_up, at::Tensor* largest) {
  const auto parts = gate_up.chunk(2, -1);
  return with_largest(at::silu(parts[0]).mul_(parts[1]), largest);
}

at::Tensor swiglu_backward_(const at::Tensor& gradient, const at::Tensor& gate_up,
                            at::Tensor* output, at::Tensor* largest) {
  const auto parts = gate_up.to(wide(gate_up)).chunk(2, -1);
  const at::Tensor dy = gradient.to(wide(gradient)), active = at::silu(parts[0]);
  const at::Tensor result = at::cat({at::silu_backward(dy * parts[1], parts[0]), active * dy}, -1);
  if (output) *output = gradient.copy_(active * parts[1]);
  return with_largest(result.to(gate_up.scalar_type()), largest);
}

}  // namespace tessera::ops::reference
