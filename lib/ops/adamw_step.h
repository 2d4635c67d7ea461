// SPDX-License-Identifier: MIT
#pragma once
// Per-step constants of AdamW, with the same bits on a host and on a GPU.
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define TESSERA_ON_BOTH __host__ __device__ inline
#else
#define TESSERA_ON_BOTH inline
#endif

namespace tessera::ops {

// Products and sums rounded separately: a compiler would fuse some of them.
namespace unfused {
#ifdef __CUDA_ARCH__
TESSERA_ON_BOTH double product(double a, double b) { return __dmul_rn(a, b); }
TESSERA_ON_BOTH double difference(double a, double b) { return __dsub_rn(a, b); }
#else
TESSERA_ON_BOTH double product(double a, double b) { return a * b; }
TESSERA_ON_BOTH double difference(double a, double b) { return a - b; }
#endif
}  // namespace unfused

// 1 - beta^step by repeated squaring; step from 1.
TESSERA_ON_BOTH double bias_correction(double beta, int64_t step) {
  double power = 1;
  for (; step > 0; step /= 2) {
    if (step % 2 == 1) power = unfused::product(power, beta);
    beta = unfused::product(beta, beta);
  }
  return unfused::difference(1, power);
}

// 1 / sqrt(1 - beta2^step)
TESSERA_ON_BOTH float inverse_root_of_correction(double beta2, int64_t step) {
  return static_cast<float>(1 / std::sqrt(bias_correction(beta2, step)));
}

// [Note: dithered second moments]
// bf16 has 8 bits, and a step changes the second moment by about (1 - beta2), 0.001 of itself.
// Rounded to nearest it hardly moves: under constant gradients it stops at 0.28 of its value, and
// it never decays. So a step adds its dither to the 16 bits that are cut off. Over the steps
// dithers cover [0, 2^16) evenly (the Weyl sequence of the golden ratio), so that roundings average
// out: a deterministic form of stochastic rounding (compare Wu 2021, "Dither Computing",
// arXiv:2102.10732), with less noise. It depends on the step alone: layouts, shards and resumed
// runs have the same bits.
TESSERA_ON_BOTH uint32_t second_moment_dither(int64_t step) {
  return (static_cast<uint32_t>(step) * 0x9E3779B9U) >> 16;
}

struct AdamWRates {
  float keep;       // 1 - rate * decoupled weight decay
  float l2;         // weight decay added to the gradient
  float step_size;  // rate / (1 - beta1^step)
};
TESSERA_ON_BOTH AdamWRates adamw_rates(double rate, double weight_decay, bool decoupled,
                                       double beta1, int64_t step) {
  const double decay = decoupled ? unfused::product(rate, weight_decay) : 0;
  return {static_cast<float>(unfused::difference(1, decay)),
          static_cast<float>(decoupled ? 0 : weight_decay),
          static_cast<float>(rate / bias_correction(beta1, step))};
}

}  // namespace tessera::ops

#undef TESSERA_ON_BOTH
