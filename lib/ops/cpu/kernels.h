// SPDX-License-Identifier: MIT
#pragma once
// Single-threaded whole-buffer operations on raw host arrays, with the widest vectors of the
// machine, chosen at run time. No fused multiply-adds, so that every instruction set gives the same
// bits.
#include <cstdint>

namespace tessera::ops::cpu {

enum class Type { kNone, kFloat, kBFloat16, kHalf };

// Per-step constants of an AdamW or Adam update.
struct AdamWConstants {
  float gradient_scale;
  float keep;  // 1 - learning rate * decoupled weight decay
  float l2;    // weight decay added to the gradient
  float one_minus_beta1, beta2, one_minus_beta2;
  float inverse_root;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
  float step_size;  // learning rate / (1 - beta1^t)
  uint32_t dither;  // second_moment_dither(), for moments in bf16
};

// Arrays of equal length at any address. Moments: both fp32, or both bf16. low_precision is null
// for Type::kNone; streaming stores write it where its alignment allows. With a remainder, beside
// bf16 low_precision, the parameter is split (tessera/core/split_master.h) and its pointer null.
struct AdamWArrays {
  float* parameter;
  void *exp_avg, *exp_avg_sq;
  const void* gradient;
  void* low_precision;
  int16_t* remainder;
};

struct AdamWTypes {
  Type gradient, low_precision, moments;
};

void adamw(const AdamWArrays& arrays, int64_t count, const AdamWTypes& types,
           const AdamWConstants& constants);

// Converts a block of kMomentBlock moments (lib/ops/moment_map.h) to fp32 and back. encode_block()
// returns the largest magnitude.
void decode_block(const uint8_t* codes, float largest, bool is_signed, float* values);
float encode_block(const float* values, bool is_signed, uint8_t* codes);

// Summed in fp64 in a fixed order.
double square_sum(const void* data, int64_t count, Type type);

}  // namespace tessera::ops::cpu
