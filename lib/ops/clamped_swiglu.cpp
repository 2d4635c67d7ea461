// SPDX-License-Identifier: MIT
#include "lib/ops/clamped_swiglu.h"

#include <ATen/ATen.h>

#include "lib/ops/reference.h"

namespace tessera::ops::reference {

at::Tensor clamped_swiglu_forward(const at::Tensor& gate_up) {
  const auto parts = gate_up.to(wide(gate_up)).unflatten(-1, {-1, 2}).unbind(-1);
  const at::Tensor gate = parts[0].clamp_max(kSwigluLimit);
  const at::Tensor up = parts[1].clamp(-kSwigluLimit, kSwigluLimit).add_(1);
  return (gate * (gate * kSwigluSlope).sigmoid_()).mul_(up).to(gate_up.scalar_type());
}

at::Tensor clamped_swiglu_backward(const at::Tensor& gradient, const at::Tensor& gate_up) {
  const auto parts = gate_up.to(wide(gate_up)).unflatten(-1, {-1, 2}).unbind(-1);
  const at::Tensor gate = parts[0].clamp_max(kSwigluLimit);
  const at::Tensor up = parts[1].clamp(-kSwigluLimit, kSwigluLimit).add_(1);
  const at::Tensor dy = gradient.to(gate.scalar_type()), s = (gate * kSwigluSlope).sigmoid_();
  const at::Tensor slope = s * (1 + kSwigluSlope * gate * (1 - s));
  const at::Tensor dgate = (dy * up * slope).masked_fill_(parts[0].gt(kSwigluLimit), 0);
  const at::Tensor dup = (dy * gate * s).masked_fill_(parts[1].abs().gt(kSwigluLimit), 0);
  return at::stack({dgate, dup}, -1).flatten(-2).to(gate_up.scalar_type());
}

}  // namespace tessera::ops::reference
