// SPDX-License-Identifier: MIT
#pragma once
// The activation of gpt-oss' experts: gate sigmoid(1.702 gate) (up + 1), of gates up to 7 and ups
// in [-7, 7]. Clamped values have no gradient. Source: transformers' GptOssExperts.
#include <ATen/core/Tensor.h>

namespace tessera::ops {

constexpr double kSwigluLimit = 7.0, kSwigluSlope = 1.702;

// gate_up [..., 2 n], gates in even columns, ups in odd ones -> [..., n].
at::Tensor clamped_swiglu_forward(const at::Tensor& gate_up);
// Gradient of gate_up for that of the result.
at::Tensor clamped_swiglu_backward(const at::Tensor& gradient, const at::Tensor& gate_up);

}  // namespace tessera::ops
