// SPDX-License-Identifier: MIT
#pragma once
// The host's clock for durations.
#include <chrono>

namespace tessera {

// Seconds of a clock that never goes back; only differences mean something.
inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace tessera
