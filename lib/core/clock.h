// SPDX-License-Identifier: MIT
#pragma once
// Host clock for durations.
#include <chrono>

namespace tessera {

// Seconds of a monotonic clock; only differences are meaningful.
inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace tessera
