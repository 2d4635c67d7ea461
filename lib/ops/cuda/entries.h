// SPDX-License-Identifier: MIT
#pragma once
// The CUDA version of every operation: takes any tensors on a CUDA device and falls back to the
// reference by itself.
#include "lib/ops/reference.h"

namespace tessera::ops::cuda {

TESSERA_FOR_EACH_OPERATION(TESSERA_DECLARE_OPERATION)

}  // namespace tessera::ops::cuda
