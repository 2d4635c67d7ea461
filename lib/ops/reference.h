// SPDX-License-Identifier: MIT
#pragma once
// ATen version of every operation: correct on any device and dtype, the reference for the CUDA
// versions.
#include <ATen/core/Tensor.h>

#include "lib/ops/operations.h"

namespace tessera::ops::reference {

// dtype of sums and softmax: fp32 unless the input is wider.
inline at::ScalarType wide(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

TESSERA_FOR_EACH_OPERATION(TESSERA_DECLARE_OPERATION)

}  // namespace tessera::ops::reference
