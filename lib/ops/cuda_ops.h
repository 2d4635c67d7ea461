// SPDX-License-Identifier: MIT
#pragma once
// How the operations reach their CUDA versions without knowing CUDA: a table that is absent from
// CPU builds.
#include "lib/ops/reference.h"

namespace tessera::ops {

struct CudaOps {
#define TESSERA_ENTRY(name) decltype(&reference::name) name;
  TESSERA_FOR_EACH_OPERATION(TESSERA_ENTRY)
#undef TESSERA_ENTRY
};

const CudaOps* cuda_ops();  // null when the library was built without CUDA

}  // namespace tessera::ops
