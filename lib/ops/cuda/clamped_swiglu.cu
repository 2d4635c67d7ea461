// SPDX-License-Identifier: MIT
// The clamped activation of lib/ops/clamped_swiglu.h: four gates and ups a thread, side by side.
#include "lib/ops/cuda/dispatch.cuh"
#include "lib/ops/cuda/swiglu.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kLimit = 7.0F, kSlope = 1.702F;  // clamped_swiglu.h is no header for nvcc

unsigned blocks_for(int64_t threads) { return unsigned((threads + kThreads - 1) / kThreads); }

// fminf and fmaxf would turn NaN into the limit.
__device__ __forceinline__ float at_most(float x, float limit) { return x > limit ? limit : x; }
__device__ __forceinline__ float at_least(float x, float limit) { return x < limit ? limit : x; }

// Two of gate_up's vectors make one of the output.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    clamped_swiglu_kernel(const uint4* gate_up, uint4* output, int64_t count) {
  const int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= count) return;
  float y[8];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float pairs[8];
    unpack<T>(gate_up[2 * at + half], pairs);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float gate = at_most(pairs[2 * j], kLimit);
      const float up = at_least(at_most(pairs[2 * j + 1], kLimit), -kLimit) + 1.0F;
      y[4 * half + j] = gate * sigmoid(kSlope * gate) * up;
    }
  }
  output[at] = pack<T>(y);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    clamped_swiglu_backward_kernel(const uint4* gradient, const uint4* gate_up,
                                   uint4* gate_up_gradient, int64_t count) {
  const int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= count) return;
  float dy[8];
  unpack<T>(gradient[at], dy);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float pairs[8];
    unpack<T>(gate_up[2 * at + half], pairs);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float given_gate = pairs[2 * j], given_up = pairs[2 * j + 1];
      const float gate = at_most(given_gate, kLimit);
      const float up = at_least(at_most(given_up, kLimit), -kLimit) + 1.0F;
      const float s = sigmoid(kSlope * gate), d = dy[4 * half + j];
      pairs[2 * j] = given_gate > kLimit ? 0.0F : d * up * s * (1.0F + kSlope * gate * (1.0F - s));
      pairs[2 * j + 1] = fabsf(given_up) > kLimit ? 0.0F : d * gate * s;
    }
    gate_up_gradient[2 * at + half] = pack<T>(pairs);
  }
}

}  // namespace

void clamped_swiglu(Type type, const void* gate_up, void* output, int64_t vectors,
                    cudaStream_t stream) {
  with_16_bit_type(type, [&](auto tag) {
    clamped_swiglu_kernel<typename decltype(tag)::type>
        <<<blocks_for(vectors), kThreads, 0, stream>>>(static_cast<const uint4*>(gate_up),
                                                       static_cast<uint4*>(output), vectors);
  });
}

void clamped_swiglu_backward(Type type, const void* gradient, const void* gate_up,
                             void* gate_up_gradient, int64_t vectors, cudaStream_t stream) {
  with_16_bit_type(type, [&](auto tag) {
    clamped_swiglu_backward_kernel<typename decltype(tag)::type>
        <<<blocks_for(vectors), kThreads, 0, stream>>>(
            static_cast<const uint4*>(gradient), static_cast<const uint4*>(gate_up),
            static_cast<uint4*>(gate_up_gradient), vectors);
  });
}

}  // namespace tessera::ops::cuda
