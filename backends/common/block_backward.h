// SPDX-License-Identifier: MIT
#pragma once
// Backward of one block.
#include <ATen/core/Tensor.h>

namespace tessera {

// The gradient of input, a leaf, from that of output, which was computed from it; undefined where
// input has none. Parameters that output was computed from get theirs; what output kept for
// backward is freed.
at::Tensor block_backward(const at::Tensor& output, const at::Tensor& gradient,
                          const at::Tensor& input);

}  // namespace tessera
