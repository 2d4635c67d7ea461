// SPDX-License-Identifier: MIT
#pragma once
// One element of AdamW, the same in every kernel.
#include "lib/ops/cuda/launch.h"
#include "lib/ops/cuda/vector.cuh"

namespace tessera::ops::cuda {

// Four values a thread: what a warp reads or writes at once is one piece of memory, whatever the
// type.
template <typename T>
__device__ __forceinline__ void load4(const T* data, float (&out)[4]) {
  if constexpr (sizeof(T) == 4) {
    unpack<T>(*reinterpret_cast<const uint4*>(data), out);
  } else {
    const uint2 raw = *reinterpret_cast<const uint2*>(data);
    float values[8];
    unpack<T>(make_uint4(raw.x, raw.y, 0, 0), values);
#pragma unroll
    for (int j = 0; j < 4; ++j) out[j] = values[j];
  }
}

template <typename T>
__device__ __forceinline__ void store4(T* data, const float (&in)[4]) {
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<uint4*>(data) = pack<T>(in);
  } else {
    const uint4 raw = pack<T>({in[0], in[1], in[2], in[3], 0, 0, 0, 0});
    *reinterpret_cast<uint2*>(data) = make_uint2(raw.x, raw.y);
  }
}

struct Step {
  float learning_rate, scale, inverse1, inverse_root2;  // of the bias corrections
};

__device__ __forceinline__ Step read_step(const AdamWConstants& c) {
  const float t = *c.step_count;
  return {*c.learning_rate, c.gradient_scale ? *c.gradient_scale : 1.0F,
          -1.0F / expm1f(t * c.log_beta1), rsqrtf(-expm1f(t * c.log_beta2))};
}

// The same bits for every element: left alone, the compiler fuses products and sums of whole pieces
// and of single elements differently.
__device__ __forceinline__ void update(const AdamWConstants& c, const Step& step, float decay,
                                       float gradient, float& parameter, float& m, float& v) {
  gradient = __fmul_rn(gradient, step.scale);
  if (!c.decoupled) {
    gradient = fmaf(decay, parameter, gradient);
    decay = 0;
  }
  m = fmaf(c.one_minus_beta1, __fsub_rn(gradient, m), m);
  v = fmaf(c.beta2, v, __fmul_rn(__fmul_rn(c.one_minus_beta2, gradient), gradient));
  const float denominator = fmaf(__fsqrt_rn(v), step.inverse_root2, c.epsilon);
  parameter = fmaf(-__fmul_rn(step.learning_rate, decay), parameter, parameter);
  parameter =
      fmaf(-__fmul_rn(step.learning_rate, step.inverse1), __fdividef(m, denominator), parameter);
}

}  // namespace tessera::ops::cuda
