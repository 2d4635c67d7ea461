// SPDX-License-Identifier: MIT
#pragma once
// For tests that need GPUs. Without one they count as skipped in ctest, or fail if TESSERA_GPUS
// promises it.
#include <c10/core/TensorOptions.h>

#include "tests/gpu/gpu_count.h"
#include "tests/support/test.hpp"

#define TESSERA_NEEDS_GPUS(count)                                                   \
  if (const auto missing = tessera::test::missing_gpus(count); !missing.empty()) {  \
    if (tessera::test::gpus_are_promised(count)) FAIL("TESSERA_GPUS: " << missing); \
    WARN("skipped: " << missing);                                                   \
    return;                                                                         \
  }

namespace tessera::testing {

inline const at::TensorOptions kOnGpu(at::kCUDA);  ///< of the current GPU

}  // namespace tessera::testing
