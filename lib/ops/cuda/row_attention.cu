// SPDX-License-Identifier: MIT
// Attention inside short rows; a block processes a tile of 64 queries. No query meets a key of
// another row, so the work grows with the rows' lengths, not with the sequences that hold them.
// Online softmax (Milakov, Gimelshein 2018; Dao 2023).
#include "lib/ops/cuda/row_attention.cuh"

namespace tessera::ops::cuda {
namespace {

// Blocks that fit a multiprocessor's registers and shared memory.
constexpr int blocks_of(int head) { return (head == 64 ? 4 : 3) + kProductsRunBeside; }

template <typename T, int kHead>
__global__ void __launch_bounds__(kThreads, blocks_of(kHead)) row_attention_kernel(RowAttention a) {
  extern __shared__ Panel<64> memory[];
  auto* tiles = reinterpret_cast<Tile<kHead>*>(memory);
  RowTile row_tile = find_tile(a);
  if (row_tile.length == 0) return;
  row_tile.tile = row_tile.tiles - 1 - row_tile.tile;  // tiles with most keys first
  const int head = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Columns<kHead> columns(a, head, head / (a.heads / a.key_heads));
  const T* row = static_cast<const T*>(a.qkv) + row_tile.first_token * columns.stride;
  const int first_query = row_tile.tile * kTile,
            queries = min(kTile, row_tile.length - first_query);
  const float scale = a.scale * kLog2E, slope = a.slopes ? a.slopes[head] * kLog2E : 0.0F;

  const auto pair_of = [&](int tile) { return tiles + 1 + 2 * (tile % 2); };
  const auto load = [&](int tile) {
    load_keys_and_values(pair_of(tile), row, columns, row_tile, tile);
  };
  load_tile(tiles[0], row + first_query * columns.stride + columns.q, columns.stride, queries);
  load(0);
  Accumulator<kHead> output;
  output.clear();
  float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  for (int tile = 0; tile <= row_tile.tile; ++tile) {
    if (tile < row_tile.tile) load(tile + 1);
    __pipeline_wait_prior(tile < row_tile.tile ? 1 : 0);
    publish_tiles();
    __syncthreads();
    const Tile<kHead>* pair = pair_of(tile);
    Scores scores;
    begin_products();
    multiply_transposed<T>(scores, tiles[0], pair[0]);
    commit_products();
    wait_for_products<0>();
    take(scores);
    const float bias = slope * float((tile - row_tile.tile) * kTile + 2 * (lane % 4));
    float highest[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores.x[j][i] = scores.x[j][i] * scale + (bias + slope * float(8 * j + i % 2));
      }
    }
    if (tile == row_tile.tile) hide_later_keys</*kByKey=*/false>(scores);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        highest[half] =
            fmaxf(highest[half], fmaxf(scores.x[j][2 * half], scores.x[j][2 * half + 1]));
      }
      highest[half] = fmaxf(highest[half], __shfl_xor_sync(0xffffffffU, highest[half], 1));
      highest[half] = fmaxf(highest[half], __shfl_xor_sync(0xffffffffU, highest[half], 2));
      const float factor = power_of_two(maximum[half] - highest[half]);
      maximum[half] = highest[half], sum[half] *= factor;
#pragma unroll
      for (int j = 0; j < kHead / 8; ++j) {
        output.x[j][2 * half] *= factor, output.x[j][2 * half + 1] *= factor;
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores.x[j][i] = power_of_two(scores.x[j][i] - maximum[i / 2]);
        sum[i / 2] += scores.x[j][i];
      }
    }
    const Operand p = to_operand<T>(scores);
    begin_products();
    multiply<T>(output, p, pair[1]);
    commit_products();
    wait_for_products<0>();
    take(output);
    __syncthreads();
  }
  if (16 * warp >= queries) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(0xffffffffU, sum[half], 1);
    sum[half] += __shfl_xor_sync(0xffffffffU, sum[half], 2);
    const int query = 16 * warp + lane / 4 + 8 * half;
    if (lane % 4 == 0 && query < queries) {
      a.log_sum_exp[head * a.tokens + row_tile.first_token + first_query + query] =
          maximum[half] + __log2f(sum[half]);
    }
    const float factor = 1.0F / sum[half];
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j) {
      output.x[j][2 * half] *= factor, output.x[j][2 * half + 1] *= factor;
    }
  }
  const int64_t stride = int64_t(a.heads) * kHead;
  store_rows(
      tiles[0], output, 1.0F,
      static_cast<T*>(a.output) + (row_tile.first_token + first_query) * stride + head * kHead,
      stride, queries);
}

}  // namespace

void row_attention(Type type, const RowAttention& a, cudaStream_t stream) {
  with_16_bit_type(type, [&](auto tag) {
    with_head(a.d, [&](auto head) {
      launch<row_attention_kernel<typename decltype(tag)::type, head>>(a, 5 * sizeof(Tile<head>), 1,
                                                                       stream);
    });
  });
}

}  // namespace tessera::ops::cuda
