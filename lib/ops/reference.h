// SPDX-License-Identifier: MIT
#pragma once
// ATen version of every operation: correct on any device and dtype, the reference for the CUDA
// versions.
#include <ATen/core/Tensor.h>

#include "lib/ops/operations.h"
#include "lib/ops/wide.h"

namespace tessera::ops::reference {

TESSERA_FOR_EACH_OPERATION(TESSERA_DECLARE_OPERATION)

}  // namespace tessera::ops::reference
