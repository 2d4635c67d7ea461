// SPDX-License-Identifier: MIT
#pragma once
// Reference of memory bandwidth (McCalpin's STREAM) on one thread.
#include <cstdint>

namespace tessera::benchmarks {

// a = b + 3 c with streaming stores: 12 bytes of traffic per element. Addresses are multiples of
// 64, count is a multiple of 16.
void triad(float* a, const float* b, const float* c, int64_t count);

}  // namespace tessera::benchmarks
