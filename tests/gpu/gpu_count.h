// SPDX-License-Identifier: MIT
#pragma once
// What a test that needs GPUs finds. TESSERA_GPUS: how many this host must have.
#include <cstdlib>
#include <string>

#include "tessera/core/device.h"

namespace tessera::test {

// What is missing for a test on this many GPUs; empty when nothing is.
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
