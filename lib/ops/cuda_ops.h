// SPDX-License-Identifier: MIT
#pragma once
// Table of the CUDA versions, so that operations need not know CUDA; absent from CPU builds.
#include "lib/ops/reference.h"

namespace tessera::ops {

struct CudaOps {
#define TESSERA_ENTRY(name) decltype(&reference::name) name;
  TESSERA_FOR_EACH_OPERATION(TESSERA_ENTRY)
#undef TESSERA_ENTRY
};

const CudaOps* cuda_ops();  // null when built without CUDA

}  // namespace tessera::ops
