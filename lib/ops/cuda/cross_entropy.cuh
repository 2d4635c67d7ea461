// SPDX-License-Identifier: MIT
#pragma once
// Shared by the kernels of cross_entropy.cu and cross_entropy_pipelined.cu.
#include "lib/ops/cuda/launch.h"

namespace tessera::ops::cuda {

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLowest =
    -1e30F;  // maximum of an empty set; finite, so that differences are never NaN
constexpr int kIgnored = -100;

// 2^x in one instruction; results below the normal range flush to 0.
__device__ __forceinline__ float power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Maximum (in log2 units) and the sum of 2^(x log2(e) - maximum).
struct Statistics {
  float maximum = kLowest, sum = 0;

  __device__ void merge(float other_maximum, float other_sum) {
    const float joint = fmaxf(maximum, other_maximum);
    sum = sum * power_of_two(maximum - joint) + other_sum * power_of_two(other_maximum - joint);
    maximum = joint;
  }
  // Log-sum-exp in log2 units.
  __device__ float log_sum() const { return maximum + log2f(sum); }
};

// cross_entropy() with a scale, for GPUs with clusters. False: unsupported rows, and nothing was
// launched.
bool cross_entropy_pipelined(Type type, const LogitRows& rows, const float* scale, float* row_loss,
                             cudaStream_t stream);

}  // namespace tessera::ops::cuda
