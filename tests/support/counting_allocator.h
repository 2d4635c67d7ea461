// SPDX-License-Identifier: MIT
#pragma once
// Counts what LibTorch allocates on the CPU, by the thread (rank) that asked for it.
#include <cstdint>
#include <memory>

#include "tessera/core/not_copied.h"

namespace tessera::testing {

// While an object lives, every CPU tensor allocation of any thread is counted for that thread. One
// at a time.
class CountingAllocator : NotCopied {
 public:
  CountingAllocator();
  ~CountingAllocator();

  // Of the calling thread since it began to allocate or since the last reset_peak().
  static int64_t live_bytes();
  static int64_t peak_bytes();
  static int64_t allocations();
  static void reset_peak();  // peak := live
  // An allocation of the calling thread that would make more than this live throws std::bad_alloc;
  // 0: none does.
  static void limit(int64_t bytes);
};

}  // namespace tessera::testing
