// SPDX-License-Identifier: MIT
#pragma once
// 16-byte accesses to 16-bit and fp32 data, unpacked to fp32, and reductions shared by the kernels.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace tessera::ops::cuda {

using Half = __half;
using Bfloat16 = __nv_bfloat16;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(Half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(Bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ Half from_float<Half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ Bfloat16 from_float<Bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// Elements of T per 16 bytes.
template <typename T>
constexpr int kWidth = 16 / sizeof(T);

template <typename T>
__device__ __forceinline__ void unpack(const uint4& raw, float (&out)[kWidth<T>]);
template <>
__device__ __forceinline__ void unpack<float>(const uint4& raw, float (&out)[4]) {
  out[0] = __uint_as_float(raw.x), out[1] = __uint_as_float(raw.y);
  out[2] = __uint_as_float(raw.z), out[3] = __uint_as_float(raw.w);
}
template <>
__device__ __forceinline__ void unpack<Half>(const uint4& raw, float (&out)[8]) {
  const __half2* pairs = reinterpret_cast<const __half2*>(&raw);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(pairs[i]);
    out[2 * i] = pair.x, out[2 * i + 1] = pair.y;
  }
}
template <>
__device__ __forceinline__ void unpack<Bfloat16>(const uint4& raw, float (&out)[8]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = __uint_as_float(words[i] << 16);
    out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
  }
}

template <typename T>
__device__ __forceinline__ uint4 pack(const float (&in)[kWidth<T>]);
template <>
__device__ __forceinline__ uint4 pack<float>(const float (&in)[4]) {
  return make_uint4(__float_as_uint(in[0]), __float_as_uint(in[1]), __float_as_uint(in[2]),
                    __float_as_uint(in[3]));
}
template <typename Pair, Pair (*kRounded)(float, float)>
__device__ __forceinline__ uint4 pack_pairs(const float (&in)[8]) {
  uint4 raw;
  Pair* pairs = reinterpret_cast<Pair*>(&raw);
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = kRounded(in[2 * i], in[2 * i + 1]);
  return raw;
}
template <>
__device__ __forceinline__ uint4 pack<Half>(const float (&in)[8]) {
  return pack_pairs<__half2, __floats2half2_rn>(in);
}
template <>
__device__ __forceinline__ uint4 pack<Bfloat16>(const float (&in)[8]) {
  return pack_pairs<__nv_bfloat162, __floats2bfloat162_rn>(in);
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    value += __shfl_xor_sync(0xffffffffU, value, offset);
  }
  return value;
}

// tanh with one exponential; absolute error of a few 1e-7, exact limits at both ends.
__device__ __forceinline__ float fast_tanh(float x) {
  return 1.0F - __fdividef(2.0F, 1.0F + __expf(2.0F * x));
}

constexpr float kGeluSlope = 0.7978845608028654F;
constexpr float kGeluCubic = 0.044715F;

__device__ __forceinline__ float gelu(float x) {
  const float t = fast_tanh(kGeluSlope * (x + kGeluCubic * x * x * x));
  return 0.5F * x * (1.0F + t);
}

// GELU and its derivative together.
__device__ __forceinline__ float gelu_with_derivative(float x, float& derivative) {
  const float square = x * x;
  const float t = fast_tanh(kGeluSlope * x * (1.0F + kGeluCubic * square));
  const float half = 0.5F * (1.0F + t);
  derivative = half + 0.5F * x * (1.0F - t * t) * kGeluSlope * (1.0F + 3.0F * kGeluCubic * square);
  return half * x;
}

}  // namespace tessera::ops::cuda
