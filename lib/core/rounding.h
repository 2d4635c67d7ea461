// SPDX-License-Identifier: MIT
#pragma once
// Rounding of sizes that vary between batches, so that GPUs meet few sizes.
#include <algorithm>
#include <bit>
#include <cstdint>

namespace tessera {

// Distance to the next used size: 64; from 1,024 on an eighth of the power of two below.
inline int64_t rounding_unit(int64_t size) {
  return std::max<int64_t>(64,
                           static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(size))) / 8);
}

// size rounded up to a used one.
inline int64_t rounded_size(int64_t size) {
  const int64_t unit = rounding_unit(size);
  return (size + unit - 1) / unit * unit;
}

}  // namespace tessera
