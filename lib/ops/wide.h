// SPDX-License-Identifier: MIT
#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::ops {

// dtype of sums and softmax: fp32 unless the input is wider.
inline at::ScalarType wide(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace tessera::ops
