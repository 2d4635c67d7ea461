// SPDX-License-Identifier: MIT
#pragma once
#include "tessera/core/not_copied.h"
// Named ranges for profilers.

namespace tessera {

// Marks the host's time from construction to destruction as an NVTX range (Nsight tools show it);
// costs a few nanoseconds without a profiler, nothing in builds without NVTX.
class TraceRange : NotCopied {
 public:
  explicit TraceRange(const char* name);
  ~TraceRange();
};

}  // namespace tessera
