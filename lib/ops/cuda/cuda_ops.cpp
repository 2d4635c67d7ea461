// SPDX-License-Identifier: MIT
#include "lib/ops/cuda_ops.h"

#include "lib/ops/cuda/entries.h"
#include "lib/ops/cuda/gemm.h"
#include "lib/ops/gemm_autotune.h"

namespace tessera::ops {

const CudaOps* cuda_ops() {
#define TESSERA_ENTRY(name) .name = &cuda::name,
  static constexpr CudaOps kOps{TESSERA_FOR_EACH_OPERATION(TESSERA_ENTRY)};
#undef TESSERA_ENTRY
  return &kOps;
}

int64_t products_in_tuning() { return cuda::products_in_tuning(); }

}  // namespace tessera::ops
