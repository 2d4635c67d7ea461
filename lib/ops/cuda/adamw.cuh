// SPDX-License-Identifier: MIT
#pragma once
// AdamW of one element, shared by all kernels.
#include "lib/ops/adamw_step.h"
#include "lib/ops/cuda/launch.h"
#include "lib/ops/cuda/vector.cuh"

namespace tessera::ops::cuda {

// Four values per thread, so that a warp's access is contiguous for any type.
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

// As in tessera/core/split_master.h.
__device__ __forceinline__ float settled(float master) {
  const uint32_t bits = __float_as_uint(master);
  return __uint_as_float(bits - ((bits & 0x1FFFFU) == 0x8000U ? 1U : 0U));
}
__device__ __forceinline__ float joined(float rounded, int16_t remainder) {
  return __uint_as_float(__float_as_uint(rounded) + uint32_t(int32_t(remainder)));
}
__device__ __forceinline__ int16_t remainder_of(float master) {
  return int16_t(uint16_t(__float_as_uint(master)));
}

// Adds the remainders to N rounded values; store_remainders() is the reverse. data: a multiple of 2
// N bytes.
template <int N>
__device__ __forceinline__ void join(const int16_t* data, float (&values)[N]) {
  uint32_t pairs[N / 2];
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
    const uint2 raw = reinterpret_cast<const uint2*>(data)[i];
    pairs[2 * i] = raw.x, pairs[2 * i + 1] = raw.y;
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    values[j] = joined(values[j], int16_t(uint16_t(pairs[j / 2] >> (16 * (j % 2)))));
  }
}
template <int N>
__device__ __forceinline__ void store_remainders(int16_t* data, const float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
    uint32_t pairs[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int at = 4 * i + 2 * j;
      pairs[j] = (__float_as_uint(values[at]) & 0xFFFFU) | (__float_as_uint(values[at + 1]) << 16);
    }
    reinterpret_cast<uint2*>(data)[i] = make_uint2(pairs[0], pairs[1]);
  }
}

struct Step {
  AdamWRates rates;
  float scale, inverse_root, one_minus_beta1, beta2, one_minus_beta2;
  uint32_t dither;  // of second moments in bf16
};

// Reads an entry's constants, by two threads of a block in different warps.
template <typename Entry>
__device__ __forceinline__ void read_step(const AdamWConstants& c, const Entry& entry, Step& step) {
  if (threadIdx.x == 0) {
    step.rates = adamw_rates(__dmul_rn(*c.learning_rate, entry.lr_factor), entry.weight_decay,
                             c.decoupled, c.beta1, int64_t(*c.step_count));
    step.scale = c.gradient_scale ? *c.gradient_scale : 1.0F;
    step.one_minus_beta1 = float(1 - c.beta1);
  } else if (threadIdx.x == 32) {
    step.inverse_root = inverse_root_of_correction(c.beta2, int64_t(*c.step_count));
    step.dither = second_moment_dither(int64_t(*c.step_count));
    step.beta2 = float(c.beta2);
    step.one_minus_beta2 = float(1 - c.beta2);
  }
}

// Equal to lib/ops/cpu/kernels.cpp bit for bit. The explicit roundings keep the compiler from
// fusing products and sums, differently for vectors and single elements.
__device__ __forceinline__ void update(float epsilon, const Step& step, float gradient,
                                       float& parameter, float& m, float& v) {
  gradient = __fmul_rn(gradient, step.scale);
  if (step.rates.l2 != 0) gradient = __fadd_rn(gradient, __fmul_rn(parameter, step.rates.l2));
  m = __fadd_rn(m, __fmul_rn(step.one_minus_beta1, __fsub_rn(gradient, m)));
  v = __fadd_rn(__fmul_rn(v, step.beta2),
                __fmul_rn(__fmul_rn(gradient, gradient), step.one_minus_beta2));
  const float root = __fadd_rn(__fmul_rn(__fsqrt_rn(v), step.inverse_root), epsilon);
  parameter = __fsub_rn(__fmul_rn(parameter, step.rates.keep),
                        __fmul_rn(__fdiv_rn(m, root), step.rates.step_size));
}

}  // namespace tessera::ops::cuda
