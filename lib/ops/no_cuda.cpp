// SPDX-License-Identifier: MIT
#include "lib/ops/cuda_ops.h"

namespace tessera::ops {

const CudaOps* cuda_ops() { return nullptr; }

}  // namespace tessera::ops
