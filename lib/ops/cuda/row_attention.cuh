// SPDX-License-Identifier: MIT
#pragma once
// Shared by the kernels of attention row by row.
#include <cuda_pipeline_primitives.h>

#include <type_traits>

#include "lib/ops/cuda/dispatch.cuh"
#include "lib/ops/cuda/matrix.cuh"

namespace tessera::ops::cuda {

constexpr float kLog2E = 1.4426950408889634F;

// A block's work: one tile of one row.
struct RowTile {
  int tile, tiles;      // in the row
  int64_t first_token;  // first token of the row
  int length;           // tokens of the row; 0: no work
};

__host__ __device__ __forceinline__ int tiles_of(int length) {
  return (length + kTile - 1) / kTile;
}

// Equal rows have as many slots as tiles. Otherwise row r has the slots from offsets[r] / 64 + r
// on, at least one per tile.
__device__ __forceinline__ RowTile find_tile(const RowAttention& a) {
  const int slot = blockIdx.x, lane = threadIdx.x % 32;
  if (a.offsets == nullptr) {
    const int tiles = tiles_of(a.length), row = slot / tiles;
    return {slot - row * tiles, tiles, int64_t(row) * a.length, a.length};
  }
  int row = 0, step = 1;
  while (step * 32 < a.rows) step *= 32;
  for (;; step /= 32) {
    const int other = row + lane * step, known = min(other, a.rows - 1);
    const int first = __ldg(a.offsets + known), end = __ldg(a.offsets + known + 1);
    const bool before = other < a.rows && first / kTile + other <= slot;
    const int last = __popc(__ballot_sync(0xffffffffU, before)) - 1;
    row += last * step;
    if (step > 1) continue;
    RowTile row_tile;
    row_tile.first_token = __shfl_sync(0xffffffffU, first, last);
    const int length = __shfl_sync(0xffffffffU, end, last) - int(row_tile.first_token);
    row_tile.tile = slot - (int(row_tile.first_token) / kTile + row);
    row_tile.tiles = tiles_of(length);
    row_tile.length = row_tile.tile < row_tile.tiles ? length : 0;
    return row_tile;
  }
}

// Offsets of a head's columns, in elements from a token's start.
template <int kHead>
struct Columns {
  int64_t stride;  // between tokens
  int q, k, v;
  __device__ Columns(const RowAttention& a, int head, int key_head) {
    stride = int64_t(a.heads + 2 * a.key_heads) * kHead;
    q = (a.by_head ? 3 * head : head) * kHead;
    k = (a.by_head ? 3 * head + 1 : a.heads + key_head) * kHead;
    v = (a.by_head ? 3 * head + 2 : a.heads + a.key_heads + key_head) * kHead;
  }
};

// Copies a tile of rows, with zeros beyond the last one. The caller commits and waits.
template <typename T, int kHead>
__device__ __forceinline__ void load_tile(Tile<kHead>& to, const T* from, int64_t stride,
                                          int rows) {
  each_panel(to, [&](auto& panel, int first_column) {
    constexpr int kChunks = std::decay_t<decltype(panel)>::kChunks;
    const int chunk = threadIdx.x % kChunks;
#pragma unroll
    for (int i = 0; i < kTile * kChunks / kThreads; ++i) {
      const int row = i * (kThreads / kChunks) + threadIdx.x / kChunks;
      const bool inside = row < rows;
      __pipeline_memcpy_async(panel.at(row, chunk),
                              from + (inside ? row : 0) * stride + first_column + 8 * chunk, 16,
                              inside ? 0 : 16);
    }
  });
}

// Loads keys and values of a tile of the row that begins at `row`, as one group of copies.
template <typename T, int kHead>
__device__ __forceinline__ void load_keys_and_values(Tile<kHead>* pair, const T* row,
                                                     const Columns<kHead>& columns,
                                                     const RowTile& row_tile, int tile) {
  const T* from = row + int64_t(tile) * kTile * columns.stride;
  load_tile(pair[0], from + columns.k, columns.stride, row_tile.length - tile * kTile);
  load_tile(pair[1], from + columns.v, columns.stride, row_tile.length - tile * kTile);
  __pipeline_commit();
}

// Stores the warp's 16 rows of the result through its rows of a tile that no other warp still uses.
template <typename T, int kHead>
__device__ __forceinline__ void store_rows(Tile<kHead>& by, const Accumulator<kHead>& c,
                                           float factor, T* to, int64_t stride, int rows) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  each_panel(by, [&](auto& panel, int first_column) {
#pragma unroll
    for (int j = 0; j < std::decay_t<decltype(panel)>::kChunks; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        char* slot = static_cast<char*>(panel.at(16 * warp + 8 * half + lane / 4, j));
        const float(&two)[4] = c.x[first_column / 8 + j];
        reinterpret_cast<uint32_t*>(slot)[lane % 4] =
            pack_two<T>(two[2 * half] * factor, two[2 * half + 1] * factor);
      }
    }
  });
  __syncwarp();
  each_panel(by, [&](auto& panel, int first_column) {
    constexpr int kChunks = std::decay_t<decltype(panel)>::kChunks;
#pragma unroll
    for (int i = 0; i < kChunks / 2; ++i) {
      const int row = 16 * warp + 32 / kChunks * i + lane / kChunks, chunk = lane % kChunks;
      if (row >= rows) continue;
      *reinterpret_cast<uint4*>(to + row * stride + first_column + 8 * chunk) =
          *static_cast<const uint4*>(panel.at(row, chunk));
    }
  });
}

// Hides later keys in the scores of one tile: [keys, queries] with kByKey, else [queries, keys].
template <bool kByKey>
__device__ __forceinline__ void hide_later_keys(Scores& scores) {
  const int first = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first + i / 2 * 8, column = 8 * j + threadIdx.x % 4 * 2 + i % 2;
      if (kByKey ? row > column : column > row) scores.x[j][i] = -INFINITY;
    }
  }
}

// Blocks of one head are adjacent in the grid, so that they find its tokens in the L2 cache.
template <auto* kKernel>
void launch(const RowAttention& a, int bytes, int kinds, cudaStream_t stream) {
  allow_shared_memory<kKernel>(bytes);
  const int64_t slots =
      a.offsets ? a.tokens / kTile + a.rows : int64_t(a.rows) * tiles_of(a.length);
  const dim3 grid(unsigned(slots), unsigned(kinds), unsigned(a.heads));
  kKernel<<<grid, kThreads, bytes, stream>>>(a);
}

// Calls function with the head size as a constant.
template <typename Function>
void with_head(int d, Function&& function) {
  if (d == 80) return function(std::integral_constant<int, 80>{});
  function(std::integral_constant<int, 64>{});
}

}  // namespace tessera::ops::cuda
