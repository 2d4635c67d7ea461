// SPDX-License-Identifier: MIT
#pragma once
// Launch shape of the norms' backward, for its kernels and for the memory plan.
#include <algorithm>
#include <cstdint>

namespace tessera::ops {

constexpr int kMaxNormColumns = 5120;  // limit of the kernels
constexpr int kMaxNarrowNorm = 1024, kNarrowNormThreads = 512, kWideNormThreads = 640;

// Every block sums columns over its rows; a group of threads processes one row at a time.
struct NormGrid {
  int threads, groups;  // threads per group, groups per block
  int blocks;           // one per multiprocessor, or fewer for few rows
};

constexpr NormGrid norm_grid(int64_t rows, int n, int multiprocessors) {
  const int threads = (n / 8 + 31) / 32 * 32;
  const int most = n <= kMaxNarrowNorm ? kNarrowNormThreads : kWideNormThreads;
  const int groups = std::clamp(most / threads, 1, 8);
  return {threads, groups, int(std::min<int64_t>(multiprocessors, (rows + groups - 1) / groups))};
}

}  // namespace tessera::ops
