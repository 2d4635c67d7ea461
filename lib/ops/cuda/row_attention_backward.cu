// SPDX-License-Identifier: MIT
// Backward of attention inside short rows; recomputes probabilities from their log-sum-exp.
// Separate blocks compute the gradients of queries and those of keys and values, each for a tile of
// 64 tokens. Nothing is summed across blocks, so results are deterministic.
#include "lib/ops/cuda/row_attention.cuh"

namespace tessera::ops::cuda {
namespace {

// Blocks that fit a multiprocessor's registers.
constexpr int blocks_of(int head) { return kProductsRunBeside ? 3 : head == 64 ? 2 : 1; }

// Tiles of forward's output per block of keys. One suffices, since a step uses it before its
// products; this lets more blocks of wide heads share a multiprocessor.
template <int kHead>
constexpr int kOutputs = kHead == 64 ? 2 : 1;

// Gradient of a tile's queries.
template <typename T, int kHead>
__device__ __forceinline__ void backward_queries(const RowAttention& a, RowTile row_tile,
                                                 Tile<kHead>* tiles) {
  row_tile.tile = row_tile.tiles - 1 - row_tile.tile;
  const int head = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Columns<kHead> columns(a, head, head / (a.heads / a.key_heads));
  const T* row = static_cast<const T*>(a.qkv) + row_tile.first_token * columns.stride;
  const int64_t width = int64_t(a.heads) * kHead;
  const int first_query = row_tile.tile * kTile,
            queries = min(kTile, row_tile.length - first_query);
  const int64_t rows_before = (row_tile.first_token + first_query) * width + head * kHead;
  const float scale = a.scale * kLog2E, slope = a.slopes ? a.slopes[head] * kLog2E : 0.0F;

  Tile<kHead>&q = tiles[4], &gradient = tiles[5];
  const auto pair_of = [&](int tile) { return tiles + 2 * (tile % 2); };
  const auto load = [&](int tile) {
    load_keys_and_values(pair_of(tile), row, columns, row_tile, tile);
  };
  load_tile(q, row + first_query * columns.stride + columns.q, columns.stride, queries);
  load_tile(gradient, static_cast<const T*>(a.gradient) + rows_before, width, queries);
  load_tile(tiles[2], static_cast<const T*>(a.output) + rows_before, width, queries);
  __pipeline_commit();
  load(0);
  float log_sum[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = 16 * warp + lane / 4 + 8 * half;
    log_sum[half] =
        query < queries
            ? a.log_sum_exp[head * a.tokens + row_tile.first_token + first_query + query]
            : INFINITY;
  }
  __pipeline_wait_prior(1);
  __syncthreads();
  {
    // Thread 2 i holds row i's sum.
    const float own = half_row_product<T>(gradient, tiles[2], threadIdx.x / 2, threadIdx.x % 2);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      delta[half] = __shfl_sync(0xffffffffU, own, 2 * (lane / 4 + 8 * half));
    }
  }
  __syncthreads();
  Accumulator<kHead> dq;
  dq.clear();
  for (int tile = 0; tile <= row_tile.tile; ++tile) {
    if (tile < row_tile.tile) load(tile + 1);
    __pipeline_wait_prior(tile < row_tile.tile ? 1 : 0);
    publish_tiles();
    __syncthreads();
    const Tile<kHead>* pair = pair_of(tile);
    Scores scores, dp;
    begin_products();
    multiply_transposed<T>(scores, q, pair[0]);
    commit_products();
    multiply_transposed<T>(dp, gradient, pair[1]);
    commit_products();
    wait_for_products<1>();
    take(scores);
    const float bias = slope * float((tile - row_tile.tile) * kTile + 2 * (lane % 4));
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores.x[j][i] =
            scores.x[j][i] * scale + ((bias + slope * float(8 * j + i % 2)) - log_sum[i / 2]);
      }
    }
    if (tile == row_tile.tile) hide_later_keys</*kByKey=*/false>(scores);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores.x[j][i] = power_of_two(scores.x[j][i]);
    }
    wait_for_products<0>();
    take(dp);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores.x[j][i] *= dp.x[j][i] - delta[i / 2];
    }
    const Operand ds = to_operand<T>(scores);
    begin_products();
    multiply<T>(dq, ds, pair[0]);
    commit_products();
    wait_for_products<0>();
    take(dq);
    __syncthreads();
  }
  if (16 * warp >= queries) return;
  store_rows(
      tiles[0], dq, a.scale,
      static_cast<T*>(a.dqkv) + (row_tile.first_token + first_query) * columns.stride + columns.q,
      columns.stride, queries);
}

// Gradients of a tile's keys and values, over all query heads that read them.
template <typename T, int kHead>
__device__ __forceinline__ void backward_keys(const RowAttention& a, const RowTile& row_tile,
                                              Tile<kHead>* tiles, float (*sums)[kTile]) {
  const int key_head = blockIdx.z, group = a.heads / a.key_heads;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Columns<kHead> columns(a, key_head, key_head);
  const T* row = static_cast<const T*>(a.qkv) + row_tile.first_token * columns.stride;
  const int64_t width = int64_t(a.heads) * kHead;
  const int first_key = row_tile.tile * kTile, keys = min(kTile, row_tile.length - first_key);
  const float scale = a.scale * kLog2E;
  const int tiles_each = row_tile.tiles - row_tile.tile, count = group * tiles_each;

  // Offset of step i's queries, in rows of `width`.
  const auto queries_at = [&](int i) {
    const int first = (row_tile.tile + i % tiles_each) * kTile;
    return (row_tile.first_token + first) * width + (key_head * group + i / tiles_each) * kHead;
  };
  constexpr bool kAhead = kOutputs<kHead> == 2;
  Tile<kHead>* outputs = tiles + 4;
  Tile<kHead>&k = tiles[4 + kOutputs<kHead>], &v = tiles[5 + kOutputs<kHead>];
  const auto load_output = [&](int i) {
    load_tile(outputs[i % kOutputs<kHead>], static_cast<const T*>(a.output) + queries_at(i), width,
              row_tile.length - (row_tile.tile + i % tiles_each) * kTile);
  };
  const auto load = [&](int i) {
    Tile<kHead>* pair = tiles + 2 * (i % 2);
    const int head = key_head * group + i / tiles_each;
    const int first = (row_tile.tile + i % tiles_each) * kTile, rows = row_tile.length - first;
    load_tile(pair[0], row + first * columns.stride + Columns<kHead>(a, head, key_head).q,
              columns.stride, rows);
    load_tile(pair[1], static_cast<const T*>(a.gradient) + queries_at(i), width, rows);
    if (kAhead || i == 0) load_output(i);
    __pipeline_commit();
  };
  load_tile(k, row + first_key * columns.stride + columns.k, columns.stride, keys);
  load_tile(v, row + first_key * columns.stride + columns.v, columns.stride, keys);
  load(0);
  Accumulator<kHead> dk, dv;
  dk.clear(), dv.clear();
  for (int i = 0; i < count; ++i) {
    const int head = key_head * group + i / tiles_each, tile = row_tile.tile + i % tiles_each;
    const float slope = a.slopes ? a.slopes[head] * kLog2E : 0.0F;
    const int queries = min(kTile, row_tile.length - tile * kTile);
    const Tile<kHead>* pair = tiles + 2 * (i % 2);
    if (i + 1 < count) load(i + 1);
    const int query = threadIdx.x / 2;
    const float log_sum =
        query < queries && threadIdx.x % 2 == 0
            ? a.log_sum_exp[head * a.tokens + row_tile.first_token + tile * kTile + query]
            : INFINITY;
    __pipeline_wait_prior(i + 1 < count ? 1 : 0);
    publish_tiles();
    __syncthreads();
    Scores scores, dp;
    begin_products();
    multiply_transposed<T>(scores, k, pair[0]);
    commit_products();
    const float delta =
        half_row_product<T>(pair[1], outputs[i % kOutputs<kHead>], query, threadIdx.x % 2);
    if (threadIdx.x % 2 == 0) sums[0][query] = log_sum, sums[1][query] = delta;
    __syncthreads();
    if (!kAhead && i + 1 < count) {
      load_output(i + 1);
      __pipeline_commit();
    }
    wait_for_products<0>();
    take(scores);
    const float from = float((row_tile.tile - tile) * kTile + 16 * warp + lane / 4);
    const float bias[2] = {slope * from, slope * (from + 8)};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 log_sums = *reinterpret_cast<const float2*>(&sums[0][8 * j + 2 * (lane % 4)]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores.x[j][e] = scores.x[j][e] * scale + (bias[e / 2] - (e % 2 ? log_sums.y : log_sums.x));
      }
    }
    if (tile == row_tile.tile) hide_later_keys</*kByKey=*/true>(scores);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores.x[j][e] = power_of_two(scores.x[j][e]);
    }
    // From here on 16-bit, so that registers suffice for three blocks.
    const Operand p = to_operand<T>(scores);
    begin_products();
    multiply_transposed<T>(dp, v, pair[1]);
    commit_products();
    multiply<T>(dv, p, pair[1]);
    commit_products();
    wait_for_products<1>();
    take(dp);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 deltas = *reinterpret_cast<const float2*>(&sums[1][8 * j + 2 * (lane % 4)]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 pair = unpack_two<T>(p.x[j / 2][j % 2 * 2 + half]);
        float &first = dp.x[j][2 * half], &second = dp.x[j][2 * half + 1];
        first = pair.x * (first - deltas.x), second = pair.y * (second - deltas.y);
      }
    }
    const Operand ds = to_operand<T>(dp);
    begin_products();
    multiply<T>(dk, ds, pair[0]);
    commit_products();
    wait_for_products<0>();
    take(dv), take(dk);
    __syncthreads();
  }
  if (16 * warp >= keys) return;
  T* to = static_cast<T*>(a.dqkv) + (row_tile.first_token + first_key) * columns.stride;
  store_rows(tiles[0], dk, a.scale, to + columns.k, columns.stride, keys);
  store_rows(tiles[1], dv, 1.0F, to + columns.v, columns.stride, keys);
}

template <typename T, int kHead>
__global__ void __launch_bounds__(kThreads, blocks_of(kHead))
    row_attention_backward_kernel(RowAttention a) {
  extern __shared__ Panel<64> memory[];
  __shared__ float sums[2][kTile];
  auto* tiles = reinterpret_cast<Tile<kHead>*>(memory);
  const RowTile row_tile = find_tile(a);
  if (row_tile.length == 0) return;
  if (blockIdx.y == 0) {
    if (blockIdx.z < a.key_heads) backward_keys<T>(a, row_tile, tiles, sums);
  } else {
    backward_queries<T>(a, row_tile, tiles);
  }
}

}  // namespace

void row_attention_backward(Type type, const RowAttention& a, cudaStream_t stream) {
  with_16_bit_type(type, [&](auto tag) {
    with_head(a.d, [&](auto head) {
      launch<row_attention_backward_kernel<typename decltype(tag)::type, head>>(
          a, (6 + kOutputs<head>)*sizeof(Tile<head>), 2, stream);
    });
  });
}

}  // namespace tessera::ops::cuda
