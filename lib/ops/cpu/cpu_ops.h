// SPDX-License-Identifier: MIT
#pragma once
// Vectorised, threaded versions of the whole-buffer operations for tensors in host memory. They
// fall back to the reference by themselves for dtypes and layouts they do not know.
#include "lib/ops/update.h"

namespace tessera::ops::cpu {

// Threads work on fixed chunks of this many elements; one chunk is done by the calling thread.
inline constexpr int64_t kChunk = 1 << 15;

decltype(ops::adamw_update) adamw_update;
decltype(ops::square_sum) square_sum;

}  // namespace tessera::ops::cpu
