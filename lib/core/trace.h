// SPDX-License-Identifier: MIT
#pragma once
#include "tessera/core/not_copied.h"
// Named ranges for profilers.

namespace tessera {

// NVTX range of host time from construction to destruction, shown by Nsight tools. Costs
// nanoseconds without a profiler, nothing in builds without NVTX.
class TraceRange : NotCopied {
 public:
  explicit TraceRange(const char* name);
  ~TraceRange();
};

}  // namespace tessera
