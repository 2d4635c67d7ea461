// SPDX-License-Identifier: MIT
#pragma once
// Conversion of doubles to integers; a plain cast of an unrepresentable value is undefined.
#include <cmath>
#include <cstdint>
#include <limits>

namespace tessera {

// Truncates, and saturates at the integer range; 0 for NaN.
inline int64_t integer_of(double number) {
  if (std::isnan(number)) return 0;
  if (number >= 0x1p63) return std::numeric_limits<int64_t>::max();
  if (number <= -0x1p63) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(number);
}

}  // namespace tessera
