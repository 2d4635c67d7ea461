// SPDX-License-Identifier: MIT
#pragma once
// Philox 4x32-10 (Salmon et al. 2011) for dropout: element i takes number i % 4 of the block for
// counter i / 4.
#include <cstdint>

#include "lib/ops/cuda/launch.h"

namespace tessera::ops::cuda {

constexpr int kPhiloxNumbers = 4;

// Numbered as by curand and at::Philox4_32: the counter's upper half is the subsequence.
__device__ __forceinline__ uint4 philox(uint64_t seed, uint64_t subsequence) {
  uint32_t low = uint32_t(seed), high = uint32_t(seed >> 32);
  uint4 c = make_uint4(0, 0, uint32_t(subsequence), uint32_t(subsequence >> 32));
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    constexpr uint32_t kFirst = 0xD2511F53U, kSecond = 0xCD9E8D57U;
    c = make_uint4(__umulhi(kSecond, c.z) ^ c.y ^ low, kSecond * c.z,
                   __umulhi(kFirst, c.x) ^ c.w ^ high, kFirst * c.x);
    low += 0x9E3779B9U, high += 0xBB67AE85U;
  }
  return c;
}

// Reads the seed from memory if seed_at is set; a kernel does so first.
__device__ __forceinline__ DropoutDraw known(DropoutDraw draw) {
  if (draw.seed_at) draw.seed = uint64_t(*draw.seed_at);
  return draw;
}

__device__ __forceinline__ float factor_of(const DropoutDraw& draw, uint32_t number) {
  return number < draw.threshold ? 0.0F : draw.factor;
}

__device__ __forceinline__ float draw_factor(const DropoutDraw& draw, int64_t element) {
  const uint4 numbers = philox(draw.seed, uint64_t(element) / kPhiloxNumbers);
  const uint32_t each[kPhiloxNumbers] = {numbers.x, numbers.y, numbers.z, numbers.w};
  return factor_of(draw, each[element % kPhiloxNumbers]);
}

// Factors of kCount elements from `element`, a multiple of four.
template <int kCount>
__device__ __forceinline__ void draw_factors(const DropoutDraw& draw, int64_t element,
                                             float (&factor)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; j += kPhiloxNumbers) {
    const uint4 numbers = philox(draw.seed, uint64_t(element + j) / kPhiloxNumbers);
    factor[j] = factor_of(draw, numbers.x), factor[j + 1] = factor_of(draw, numbers.y);
    factor[j + 2] = factor_of(draw, numbers.z), factor[j + 3] = factor_of(draw, numbers.w);
  }
}

}  // namespace tessera::ops::cuda
