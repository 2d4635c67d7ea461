// SPDX-License-Identifier: MIT
#pragma once
// CUDA version of every operation: takes any CUDA tensors and falls back to the reference by
// itself.
#include "lib/ops/reference.h"

namespace tessera::ops::cuda {

TESSERA_FOR_EACH_OPERATION(TESSERA_DECLARE_OPERATION)

}  // namespace tessera::ops::cuda
