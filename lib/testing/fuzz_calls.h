// SPDX-License-Identifier: MIT
#pragma once
// A step of several forward_backward() calls, as Player makes them.
#include <algorithm>

#include "lib/testing/oracle.h"

namespace tessera::testing {

struct StepCalls {
  int64_t count = 1;
  // Backward of all calls divides by the first call's targets; 0: a single call.
  double divisor = 0;
  double factor = 1;  // sums are larger by this, at least 1, before they become means
};

inline StepCalls calls_of(const GlobalBatch& batch, int calls) {
  const size_t micro_batches = batch.front().size();
  const size_t count = std::min(static_cast<size_t>(calls), micro_batches);
  if (count <= 1) return {};
  double first = 0, all = 0;
  for (const auto& of_rank : batch) {
    for (size_t m = 0; m < of_rank.size(); ++m) {
      const auto targets = static_cast<double>(of_rank[m].target_count);
      first += m < micro_batches / count ? targets : 0;
      all += targets;
    }
  }
  first = std::max(first, 1.0);
  return {static_cast<int64_t>(count), first, std::max(1.0, all / first)};
}

}  // namespace tessera::testing
