// SPDX-License-Identifier: MIT
#pragma once
// SwiGLU of one element, shared by the kernels of dense layers and of experts.

namespace tessera::ops::cuda {

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0F, 1.0F + __expf(-x)); }

// Replaces a gate and its up by their gradients for the output's, and returns the output.
__device__ __forceinline__ float swiglu_backward_of(float gradient, float& gate, float& up) {
  const float s = sigmoid(gate), active = gate * s, output = active * up;
  gate = gradient * up * (s + active * (1.0F - s));
  up = gradient * active;
  return output;
}

}  // namespace tessera::ops::cuda
