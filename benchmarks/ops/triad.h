// SPDX-License-Identifier: MIT
#pragma once
// The yardstick of memory bandwidth (McCalpin's STREAM) on one thread.
#include <cstdint>

namespace tessera::benchmarks {

// a = b + 3 c with streaming stores, so that 12 bytes an element move. Addresses are multiples of
// 64, count is one of 16.
void triad(float* a, const float* b, const float* c, int64_t count);

}  // namespace tessera::benchmarks
