// SPDX-License-Identifier: MIT
// Rows of experts (lib/ops/expert_rows.h), 16 bytes an access. Rows from *row_count on have no
// values.
#include "lib/ops/cuda/dispatch.cuh"
#include "lib/ops/cuda/swiglu.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256, kWarp = 32, kRowsOfBlock = kThreads / kWarp;

unsigned blocks_for(int64_t threads) { return unsigned((threads + kThreads - 1) / kThreads); }

__device__ __forceinline__ int64_t thread_index() {
  return int64_t(blockIdx.x) * kThreads + threadIdx.x;
}

__global__ void __launch_bounds__(kThreads)
    dispatch_rows_kernel(const uint4* x, const int64_t* tokens, const int* row_count, uint4* rows,
                         int64_t count, int vectors) {
  const int64_t at = thread_index(), row = at / vectors;
  if (at >= count || row >= *row_count) return;
  rows[at] = x[tokens[row] * vectors + at % vectors];
}

// A thread adds up eight columns of a token's rows, in their order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    combine_rows_kernel(const uint4* rows, const int64_t* row_of, const int* row_count, uint4* sums,
                        int64_t count, int vectors, int chosen) {
  const int64_t at = thread_index(), token = at / vectors, column = at % vectors;
  if (at >= count) return;
  const int end = *row_count;
  float sum[8] = {};
  for (int j = 0; j < chosen; ++j) {
    const int64_t row = row_of[token * chosen + j];
    if (row >= end) continue;
    float x[8];
    unpack<T>(rows[row * vectors + column], x);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] += x[i];
  }
  sums[at] = pack<T>(sum);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    weighted_swiglu_kernel(const uint4* gate_up, WeightsOfRows weights, uint4* output,
                           int64_t count, int vectors) {
  const int64_t at = thread_index(), row = at / vectors;
  if (at >= count || row >= *weights.row_count) return;
  const int64_t gate_at = at + row * vectors;  // rows are twice as long
  const float weight = weights.of_slots[weights.slots[row]];
  float gate[8], up[8];
  unpack<T>(gate_up[gate_at], gate);
  unpack<T>(gate_up[gate_at + vectors], up);
#pragma unroll
  for (int j = 0; j < 8; ++j) up[j] *= gate[j] * sigmoid(gate[j]) * weight;
  output[at] = pack<T>(up);
}

// A warp has a row, whose weight's gradient is a sum over its columns.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    weighted_swiglu_backward_kernel(uint4* gradient, const uint4* gate_up, WeightsOfRows weights,
                                    uint4* gate_up_gradient, float* weight_gradient, int vectors) {
  const int64_t row = int64_t(blockIdx.x) * kRowsOfBlock + threadIdx.x / kWarp;
  if (row >= *weights.row_count) return;
  const int64_t slot = weights.slots[row];
  const float weight = weights.of_slots[slot];
  const int lane = threadIdx.x % kWarp;
  gradient += row * vectors;
  gate_up += 2 * row * vectors;
  gate_up_gradient += 2 * row * vectors;
  float dot = 0;
  for (int column = lane; column < vectors; column += kWarp) {
    float dy[8], gate[8], up[8];
    unpack<T>(gradient[column], dy);
    unpack<T>(gate_up[column], gate);
    unpack<T>(gate_up[column + vectors], up);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float y = swiglu_backward_of(dy[j] * weight, gate[j], up[j]);
      dot += dy[j] * y;
      dy[j] = y * weight;
    }
    gradient[column] = pack<T>(dy);
    gate_up_gradient[column] = pack<T>(gate);
    gate_up_gradient[column + vectors] = pack<T>(up);
  }
  dot = warp_sum(dot);
  if (lane == 0) weight_gradient[slot] = dot;
}

}  // namespace

void dispatch_rows(const void* x, const int64_t* tokens, const int* row_count, void* rows,
                   int64_t vectors_in_all, int vectors, cudaStream_t stream) {
  dispatch_rows_kernel<<<blocks_for(vectors_in_all), kThreads, 0, stream>>>(
      static_cast<const uint4*>(x), tokens, row_count, static_cast<uint4*>(rows), vectors_in_all,
      vectors);
}

void combine_rows(Type type, const void* rows, const int64_t* row_of, const int* row_count,
                  void* sums, int64_t tokens, int vectors, int chosen, cudaStream_t stream) {
  with_16_bit_type(type, [&](auto tag) {
    combine_rows_kernel<typename decltype(tag)::type>
        <<<blocks_for(tokens * vectors), kThreads, 0, stream>>>(
            static_cast<const uint4*>(rows), row_of, row_count, static_cast<uint4*>(sums),
            tokens * vectors, vectors, chosen);
  });
}

void weighted_swiglu(Type type, const void* gate_up, const WeightsOfRows& weights, void* output,
                     int64_t rows, int n, cudaStream_t stream) {
  const int vectors = n / 8;
  with_16_bit_type(type, [&](auto tag) {
    weighted_swiglu_kernel<typename decltype(tag)::type>
        <<<blocks_for(rows * vectors), kThreads, 0, stream>>>(static_cast<const uint4*>(gate_up),
                                                              weights, static_cast<uint4*>(output),
                                                              rows * vectors, vectors);
  });
}

void weighted_swiglu_backward(Type type, void* gradient, const void* gate_up,
                              const WeightsOfRows& weights, void* gate_up_gradient,
                              float* weight_gradient, int64_t rows, int n, cudaStream_t stream) {
  const auto blocks = unsigned((rows + kRowsOfBlock - 1) / kRowsOfBlock);
  with_16_bit_type(type, [&](auto tag) {
    weighted_swiglu_backward_kernel<typename decltype(tag)::type><<<blocks, kThreads, 0, stream>>>(
        static_cast<uint4*>(gradient), static_cast<const uint4*>(gate_up), weights,
        static_cast<uint4*>(gate_up_gradient), weight_gradient, n / 8);
  });
}

}  // namespace tessera::ops::cuda
