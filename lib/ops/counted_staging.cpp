// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include <algorithm>
#include <bit>

#include "lib/core/meta.h"
#include "lib/ops/counted.h"

namespace tessera::ops {
namespace {

int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Bytes of partial sums and semaphores of CUDA blocks that share columns. Source: setReduceConfig()
// and global_memory_size() in LibTorch's ATen/native/cuda/Reduce.cuh. They hold a whole block's
// width for each column.
int64_t staging_bytes(int64_t rows, int64_t columns) {
  constexpr int64_t kThreads = 512, kWarp = 32, kResidentThreads = 2048;
  constexpr int64_t kLeastValues = 16, kMostValues = 256;  // per thread
  const int64_t vector = columns % 4 == 0 ? 4 : columns % 2 == 0 ? 2 : 1;
  const int64_t most = kThreads / vector;
  const auto power_of_2 = [&](int64_t n) {
    return n < most ? static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n))) : most;
  };
  const int64_t wide = power_of_2(columns / vector), high = power_of_2(rows);
  const int64_t height = std::min(high, most / std::min(wide, kWarp));
  const int64_t width = std::min(wide, most / height);
  const int64_t values = div_up(rows, height), grid = div_up(columns / vector, width);
  const int64_t target = kCountedMultiprocessors * (kResidentThreads / (width * height));
  if (rows < std::min(height * kLeastValues, kMostValues)) return 0;
  if (values < kMostValues || grid > target) return 0;
  const int64_t blocks = std::max(std::min(div_up(target, grid), div_up(values, kLeastValues)),
                                  div_up(values, kMostValues));
  if (blocks == 1) return 0;
  constexpr int64_t kBytes = 4;  // of an fp32 sum, and of a semaphore
  return kBytes * (columns * blocks * width * vector + grid);
}

}  // namespace

at::Tensor counted_staging(const at::Tensor& x) {
  if (!x.is_meta() || !runs_on_gpu(x) || x.numel() == 0) return {};
  const int64_t bytes = staging_bytes(x.size(0), x.size(1));
  return bytes > 0 ? at::empty({bytes}, x.options().dtype(at::kByte)) : at::Tensor();
}

}  // namespace tessera::ops
