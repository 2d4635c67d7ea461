// SPDX-License-Identifier: MIT
#pragma once
// Parallel map over all of the process's cores with results in order.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "lib/core/host_threads.h"
#include "tessera/data/dataset.h"

namespace tessera {

// Calls make(i) on any thread, then take(i, result) on this one, for i = 0 .. count-1. Holds a few
// hundred results at a time. share_size: consecutive items per thread. Rethrows the first
// exception. progress: counts items.
template <typename Make, typename Take>
void in_order(int64_t count, const Make& make, const Take& take, int64_t share_size = 64,
              const Progress& progress = {}) {
  const std::vector<int> cores = allowed_cores();
  HostThreads threads(std::max<int>(1, static_cast<int>(cores.size())), cores);
  const int64_t round = share_size * 8 * threads.size();
  std::vector<decltype(make(int64_t{0}))> results(static_cast<size_t>(std::min(count, round)));
  for (int64_t begin = 0; begin < count; begin += round) {
    const int64_t here = std::min(round, count - begin);
    threads.run((here + share_size - 1) / share_size, [&](int64_t share) {
      const int64_t end = std::min(here, (share + 1) * share_size);
      for (int64_t i = share * share_size; i < end; ++i) {
        results[static_cast<size_t>(i)] = make(begin + i);
      }
    });
    for (int64_t i = 0; i < here; ++i) take(begin + i, results[static_cast<size_t>(i)]);
    if (progress) progress(static_cast<double>(begin + here) / static_cast<double>(count));
  }
}

}  // namespace tessera
