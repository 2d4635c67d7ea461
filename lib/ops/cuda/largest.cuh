// SPDX-License-Identifier: MIT
#pragma once
// Largest magnitudes. Their bits have the order of the magnitudes, with NaN above infinity.
#include "lib/ops/cuda/vector.cuh"

namespace tessera::ops::cuda {

__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffU; }

template <int kCount>
__device__ __forceinline__ void take_largest(uint32_t& largest, const float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) largest = max(largest, magnitude(values[i]));
}

__device__ __forceinline__ uint32_t warp_max(uint32_t value) {
  return __reduce_max_sync(0xffffffffU, value);
}

// The largest of the block's threads, rounded to T as their results are, into *to; null: not
// wanted. Whole warps, all of a block, call it once.
template <typename T>
__device__ __forceinline__ void hand_largest(uint32_t own, float* to) {
  if (to == nullptr) return;
  __shared__ uint32_t of_warps[32];
  own = warp_max(own);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  own = warp_max(threadIdx.x < blockDim.x / 32 ? of_warps[threadIdx.x] : 0);
  if (threadIdx.x != 0) return;
  auto* const bits = reinterpret_cast<uint32_t*>(to);
  own = magnitude(to_float(from_float<T>(__uint_as_float(own))));
  // Most blocks find a larger one there.
  if (own > *static_cast<volatile uint32_t*>(bits)) atomicMax(bits, own);
}

}  // namespace tessera::ops::cuda
