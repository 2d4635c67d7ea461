// SPDX-License-Identifier: MIT
// Values of 8-bit codes.
#include <cuda_fp8.h>

#include "lib/ops/cuda/dispatch.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256, kCodes = 16;

// kCodes values a thread.
template <typename T>
__global__ void __launch_bounds__(kThreads) decode_kernel(Fp8Decode p) {
  const int64_t first = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kCodes;
  if (first >= p.numel) return;
  const uint4 raw = *reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(p.codes) + first);
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  const float scale = *p.scale;
  float values[kCodes];
#pragma unroll
  for (int i = 0; i < kCodes; i += 2) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(words[i / 4] >> (i % 4 * 8));
    const float2 two = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
    values[i] = two.x * scale, values[i + 1] = two.y * scale;
  }
  auto* const to = static_cast<T*>(p.values) + first;
#pragma unroll
  for (int part = 0; part < kCodes / kWidth<T>; ++part) {
    float own[kWidth<T>];
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) own[i] = values[part * kWidth<T> + i];
    reinterpret_cast<uint4*>(to)[part] = pack<T>(own);
  }
}

}  // namespace

void fp8_decode(Type type, const Fp8Decode& p, cudaStream_t stream) {
  const int64_t threads = p.numel / kCodes;
  const auto grid = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    decode_kernel<T><<<grid, kThreads, 0, stream>>>(p);
  });
}

}  // namespace tessera::ops::cuda
