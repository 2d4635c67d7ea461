// SPDX-License-Identifier: MIT
#pragma once
// Vectorised, threaded versions of the whole-buffer operations for host tensors. They fall back to
// the reference for unsupported dtypes and layouts.
#include "lib/ops/update.h"

namespace tessera::ops::cpu {

// Elements per chunk of a thread's work; a single chunk runs on the calling thread.
inline constexpr int64_t kChunk = 1 << 15;

decltype(ops::adamw_update) adamw_update;
decltype(ops::square_sum) square_sum;

}  // namespace tessera::ops::cpu
