// SPDX-License-Identifier: MIT
#pragma once
// Backward of one block.
#include <ATen/core/Tensor.h>

namespace tessera {

// Backpropagates from output to the leaf input and returns input's gradient; undefined if it has
// none. Accumulates gradients of parameters, and frees output's saved tensors.
at::Tensor block_backward(const at::Tensor& output, const at::Tensor& gradient,
                          const at::Tensor& input);

}  // namespace tessera
