// SPDX-License-Identifier: MIT
#pragma once
// 8-bit moments in blocks, by bitsandbytes' dynamic map (Dettmers et al. 2022, "8-bit Optimizers
// via Block-wise Quantization"; create_dynamic_map with 7 exponent bits). A code is a value in [-1,
// 1], or [0, 1] when unsigned, times the block's largest magnitude.
#include <cstdint>

namespace tessera::ops {

constexpr int kMomentBlock = 256;  // elements per scale
constexpr int kMomentCodes = 256;

// Code 0 stands for zero, so that cleared memory holds zeros; bitsandbytes' code 0 is the smallest
// value.
struct MomentMap {
  float value_of[kMomentCodes];  // by code
  // Midpoints of neighbouring values in ascending order, and a last one beyond all. A value rounds
  // to the entry whose index is the number of midpoints below it; a tie takes the smaller one.
  // Positive values take at least index 1 of the unsigned map: AdamW divides by the root of a
  // second moment, which must not become zero. That is tested before the division by the scale,
  // which may underflow.
  float middle[kMomentCodes];
  int zero;  // index of 0 in ascending order; entry n has code (n - zero) modulo 256
};

constexpr MomentMap make_moment_map(bool is_signed) {
  constexpr int kExponents = 7;
  double sorted[kMomentCodes] = {};
  int count = 0;
  double scale = 1e-6;  // 10^(i - 6)
  for (int i = 0; i < kExponents; ++i, scale *= 10) {
    const int items = is_signed ? 1 << i : 2 << i;
    const double step = 0.9 / items;
    for (int item = 0; item < items; ++item) {
      // 10^-6 .. 10^0 times the midpoint of an interval of [0.1, 1].
      const double magnitude = (i == kExponents - 1 ? 1 : scale) * (0.1 + (item + 0.5) * step);
      sorted[count++] = magnitude;
      if (is_signed) sorted[count++] = -magnitude;
    }
  }
  sorted[count++] = 0;
  sorted[count++] = 1;
  for (int i = 1; i < count; ++i) {
    const double value = sorted[i];
    int at = i;
    for (; at > 0 && sorted[at - 1] > value; --at) sorted[at] = sorted[at - 1];
    sorted[at] = value;
  }
  MomentMap map = {};
  while (sorted[map.zero] < 0) ++map.zero;
  for (int i = 0; i < kMomentCodes; ++i) {
    map.value_of[(i - map.zero) & (kMomentCodes - 1)] = static_cast<float>(sorted[i]);
    map.middle[i] =
        i + 1 < kMomentCodes ? static_cast<float>((sorted[i] + sorted[i + 1]) / 2) : 2.0F;
  }
  return map;
}

// Maps of the first and the second moment.
constexpr MomentMap kSignedMap = make_moment_map(true), kUnsignedMap = make_moment_map(false);

}  // namespace tessera::ops
