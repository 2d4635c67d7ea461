// SPDX-License-Identifier: MIT
#pragma once
// GPUs available to a test. TESSERA_GPUS: the number this host must have.
#include <cstdlib>
#include <string>

#include "tessera/core/device.h"

namespace tessera::test {

// Message about missing GPUs; empty if there are enough.
inline std::string missing_gpus(int count) {
  const int found = gpu_count();
  if (found >= count) return "";
  return "this test needs " + std::to_string(count) + " CUDA GPU(s), this host shows " +
         std::to_string(found);
}

inline bool gpus_are_promised(int count) {
  const char* promised = std::getenv("TESSERA_GPUS");
  return promised != nullptr && std::atoi(promised) >= count;
}

}  // namespace tessera::test
