#pragma once
// Tests of this folder need a GPU; without one they say so and count as skipped in ctest.
#include <c10/cuda/CUDAFunctions.h>

#include "tests/support/test.hpp"

#define TESSERA_NEEDS_GPUS(count)                                   \
  if (c10::cuda::device_count() < (count)) {                        \
    WARN("skipped: this test needs " << (count) << " CUDA GPU(s)"); \
    return;                                                         \
  }
