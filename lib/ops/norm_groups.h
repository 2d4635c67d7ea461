// SPDX-License-Identifier: MIT
#pragma once
// How backward of norms is spread over a GPU: for its kernels, and for plans that count their
// memory.
#include <algorithm>
#include <cstdint>

namespace tessera::ops {

constexpr int kMaxNormColumns = 5120;  // of the kernels
constexpr int kMaxNarrowNorm = 1024, kNarrowNormThreads = 512, kWideNormThreads = 640;

// Every block sums columns over its rows, of which each is the work of a group of threads.
struct NormGrid {
  int threads, groups;  // of a group; of a block
  int blocks;           // one a multiprocessor, or fewer of one row a group
};

constexpr NormGrid norm_grid(int64_t rows, int n, int multiprocessors) {
  const int threads = (n / 8 + 31) / 32 * 32;
  const int most = n <= kMaxNarrowNorm ? kNarrowNormThreads : kWideNormThreads;
  const int groups = std::clamp(most / threads, 1, 8);
  return {threads, groups, int(std::min<int64_t>(multiprocessors, (rows + groups - 1) / groups))};
}

}  // namespace tessera::ops
