// SPDX-License-Identifier: MIT
#pragma once
// Counts LibTorch's CPU allocations by the requesting thread (rank).
#include <cstdint>
#include <memory>

#include "tessera/core/not_copied.h"

namespace tessera::testing {

// While an object lives, CPU tensor allocations are counted for their thread, and new memory holds
// NaN. One object at a time.
class CountingAllocator : NotCopied {
 public:
  CountingAllocator();
  ~CountingAllocator();

  // For the calling thread, since its first allocation or the last reset_peak().
  static int64_t live_bytes();
  static int64_t peak_bytes();
  static int64_t allocations();
  static void reset_peak();  // peak := live
  // Limit of the calling thread's live bytes, beyond which allocations throw std::bad_alloc; 0:
  // none.
  static void limit(int64_t bytes);
};

}  // namespace tessera::testing
