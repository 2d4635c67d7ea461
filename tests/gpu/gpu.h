// SPDX-License-Identifier: MIT
#pragma once
// Tests of this folder need a GPU; without one they say so and count as skipped in ctest, unless
// TESSERA_GPUS says that it must be there: then they fail.
#include "tests/gpu/gpu_count.h"
#include "tests/support/test.hpp"

#define TESSERA_NEEDS_GPUS(count)                                                   \
  if (const auto missing = tessera::test::missing_gpus(count); !missing.empty()) {  \
    if (tessera::test::gpus_are_promised(count)) FAIL("TESSERA_GPUS: " << missing); \
    WARN("skipped: " << missing);                                                   \
    return;                                                                         \
  }
