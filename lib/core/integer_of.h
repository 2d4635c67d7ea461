// SPDX-License-Identifier: MIT
#pragma once
// Doubles become integers. A cast of what does not fit is undefined.
#include <cmath>
#include <cstdint>
#include <limits>

namespace tessera {

// The whole part, or the nearest integer there is; 0 for what is not a number.
inline int64_t integer_of(double number) {
  if (std::isnan(number)) return 0;
  if (number >= 0x1p63) return std::numeric_limits<int64_t>::max();
  if (number <= -0x1p63) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(number);
}

}  // namespace tessera
