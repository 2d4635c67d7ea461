// SPDX-License-Identifier: MIT
#pragma once
// ATen version of every operation: correct on any device and dtype, the reference for the CUDA
// versions.
#include <ATen/core/Tensor.h>

#include "lib/ops/operations.h"
#include "lib/ops/wide.h"

namespace tessera::ops::reference {

TESSERA_FOR_EACH_OPERATION(TESSERA_DECLARE_OPERATION)

// The result, whose largest magnitude goes to `largest` unless it is null.
at::Tensor with_largest(const at::Tensor& result, at::Tensor* largest);

}  // namespace tessera::ops::reference
