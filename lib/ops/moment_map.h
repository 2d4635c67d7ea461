// SPDX-License-Identifier: MIT
#pragma once
// Moments in 8 bits, block by block: bitsandbytes' dynamic map (Dettmers et al. 2022, "8-bit
// Optimizers via Block-wise Quantization"; create_dynamic_map with 7 bits of exponent). A code
// stands for a value in [-1, 1], or [0, 1] without a sign, times the largest magnitude of its
// block.
#include <cstdint>

namespace tessera::ops {

constexpr int kMomentBlock = 256;  // elements that share a scale
constexpr int kMomentCodes = 256;

// Codes count from that of zero, so that blank memory holds zeros; bitsandbytes' count from the
// smallest value.
struct MomentMap {
  float value_of[kMomentCodes];  // by code
  // Between neighbours in the order of their values, the last one beyond all: a value takes the
  // n-th smallest for the number n of those below it. One that equals a middle takes the smaller.
  // A positive value takes place 1 at least: AdamW divides by the root of a second moment, which
  // would be gone as a zero. It is asked before the division by the largest, which may underflow.
  float middle[kMomentCodes];
  int zero;  // place of 0 in the order; the code of place n is (n - zero) modulo 256
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
      // 10^-6 .. 10^0 times the middle of an item of [0.1, 1].
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

// Of the first and the second moment.
constexpr MomentMap kSignedMap = make_moment_map(true), kUnsignedMap = make_moment_map(false);

}  // namespace tessera::ops
