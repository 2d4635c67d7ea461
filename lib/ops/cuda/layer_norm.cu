// SPDX-License-Identifier: MIT
// Layer norm and RMS norm (kRms: no mean, no bias) with fp32 statistics. Forward: kWarps warps hold
// one row in registers, with two passes (mean, then variance). Backward: threads of a group own 8
// columns each and loop over rows, so column sums for weight, bias and dx stay in registers.
#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <type_traits>

#include "lib/ops/cuda/dispatch.cuh"
#include "lib/ops/cuda/largest.cuh"
#include "lib/ops/norm_groups.h"

namespace tessera::ops::cuda {
namespace {

constexpr int kVectors = 4;  // 16-byte pieces of a row per thread, forward

template <int kWarps>
__device__ __forceinline__ float group_sum(float value, float* scratch, int group) {
  value = warp_sum(value);
  if constexpr (kWarps > 1) {
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) value += scratch[group * kWarps + i];
  }
  return value;
}

__device__ __forceinline__ void clear(const Cleared& cleared) {
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < cleared.pieces; i += threads)
    static_cast<uint4*>(cleared.data)[i] = make_uint4(0, 0, 0, 0);
}

template <typename T, int kWarps, bool kRms>
__global__ void __launch_bounds__(kWarps > 4 ? 32 * kWarps : 128)
    forward_kernel(const uint4* x, const uint4* weight, const uint4* bias, uint4* output,
                   float* mean, float* rstd, int64_t rows, int n, float epsilon, Cleared cleared,
                   float* largest) {
  constexpr int kThreads = 32 * kWarps, kRows = (kWarps > 4 ? kWarps : 4) / kWarps;
  __shared__ float scratch[2][8];
  const int group = threadIdx.x / kThreads, thread = threadIdx.x % kThreads;
  const int64_t row = int64_t(blockIdx.x) * kRows + group;
  const int vectors = n / 8;
  const uint4* source = x + row * vectors;
  uint4 raw[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = i * kThreads + thread;
    raw[i] = row < rows && at < vectors ? source[at] : make_uint4(0, 0, 0, 0);
  }
  clear(cleared);
  float sum = 0, row_mean = 0;
  if constexpr (!kRms) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float value[8];
      unpack<T>(raw[i], value);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += value[j];
    }
    row_mean = group_sum<kWarps>(sum, scratch[0], group) / n;
    sum = 0;
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (i * kThreads + thread >= vectors) break;
    float value[8];
    unpack<T>(raw[i], value);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += (value[j] - row_mean) * (value[j] - row_mean);
  }
  const float row_rstd = rsqrtf(group_sum<kWarps>(sum, scratch[1], group) / n + epsilon);
  uint32_t own = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = i * kThreads + thread;
    if (at >= vectors || row >= rows) break;
    float value[8], w[8], b[8] = {};
    unpack<T>(raw[i], value);
    unpack<T>(weight[at], w);
    if constexpr (!kRms) unpack<T>(bias[at], b);
#pragma unroll
    for (int j = 0; j < 8; ++j) value[j] = (value[j] - row_mean) * row_rstd * w[j] + b[j];
    output[row * vectors + at] = pack<T>(value);
    take_largest(own, value);
  }
  hand_largest<T>(own, largest);
  if (thread != 0 || row >= rows) return;
  if constexpr (!kRms) mean[row] = row_mean;
  rstd[row] = row_rstd;
}

// One block per multiprocessor. Each group of threads processes one row while prefetching its next.
constexpr int kWideThreads = kWideNormThreads, kStages = 2, kInputs = 3;

extern __shared__ uint4 shared_pieces[];

// Synchronises the threads of one group only.
__device__ __forceinline__ void synchronize_group(int group, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
}

__device__ __forceinline__ void store(float* to, const float (&value)[8]) {
  reinterpret_cast<float4*>(to)[0] = make_float4(value[0], value[1], value[2], value[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(value[4], value[5], value[6], value[7]);
}

// Rows of a group: first, first + step and so on below end. Neighbouring rows are read at the same
// time by other groups and blocks: interleaved rows reach higher bandwidth than contiguous ones.
struct Walk {
  int64_t first, end, step;
};

// A thread's part of a row.
struct RowPart {
  uint4 x, gradient, residual;
  float mean, rstd;
};

// Loads of a thread from its group's rows.
template <bool kRms>
struct Rows {
  const NormBackward& p;
  Walk walk;
  int vectors, thread;

  __device__ __forceinline__ bool active() const { return thread < vectors; }
  __device__ __forceinline__ uint4 load(const void* data, int64_t row) const {
    return active() && data ? static_cast<const uint4*>(data)[row * vectors + thread]
                            : make_uint4(0, 0, 0, 0);
  }
  __device__ __forceinline__ float2 moments(int64_t row) const {
    if (row >= walk.end) return {0, 0};
    return {kRms ? 0 : p.mean[row], p.rstd[row]};
  }
};

// Prefetches the next row into registers.
template <bool kRms>
class NextRow {
 public:
  __device__ __forceinline__ explicit NextRow(const Rows<kRms>& rows)
      : rows_(rows), next_(fetch(rows.walk.first)) {}
  __device__ __forceinline__ RowPart take(int64_t row) {
    const RowPart part = next_;
    next_ = fetch(row + rows_.walk.step);
    return part;
  }

 private:
  __device__ __forceinline__ RowPart fetch(int64_t row) const {
    const uint4 zero = make_uint4(0, 0, 0, 0);
    if (row >= rows_.walk.end) return {zero, zero, zero, 0, 0};
    const float2 moments = rows_.moments(row);
    return {rows_.load(rows_.p.x, row), rows_.load(rows_.p.gradient, row),
            rows_.load(rows_.p.residual, row), moments.x, moments.y};
  }
  const Rows<kRms>& rows_;
  RowPart next_;
};

// Prefetches the next row into shared memory [kStages, kInputs, threads of the block], where each
// thread uses its own part. For wide rows, which leave too few registers.
template <bool kRms>
class NextRows {
 public:
  __device__ __forceinline__ explicit NextRows(const Rows<kRms>& rows)
      : rows_(rows), inputs_{rows.p.x, rows.p.gradient, rows.p.residual} {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
#pragma unroll
      for (int i = 0; i < kInputs; ++i) {
        if (!rows_.active() || inputs_[i] == nullptr) slot(stage, i) = make_uint4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int i = 0; i + 1 < kStages; ++i) fetch(rows_.walk.first + i * rows_.walk.step, i);
    moments_ = rows_.moments(rows_.walk.first);
  }
  __device__ __forceinline__ RowPart take(int64_t row) {
    const float2 moments = moments_;
    moments_ = rows_.moments(row + rows_.walk.step);
    fetch(row + (kStages - 1) * rows_.walk.step, stage_ == 0 ? kStages - 1 : stage_ - 1);
    __pipeline_wait_prior(kStages - 1);
    const RowPart part{slot(stage_, 0), slot(stage_, 1), slot(stage_, 2), moments.x, moments.y};
    stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
    return part;
  }

 private:
  __device__ __forceinline__ uint4& slot(int stage, int input) const {
    return shared_pieces[(stage * kInputs + input) * blockDim.x + threadIdx.x];
  }
  __device__ __forceinline__ void fetch(int64_t row, int stage) const {
    if (rows_.active() && row < rows_.walk.end) {
#pragma unroll
      for (int i = 0; i < kInputs; ++i) {
        if (inputs_[i] == nullptr) continue;
        const auto* from = static_cast<const uint4*>(inputs_[i]);
        __pipeline_memcpy_async(&slot(stage, i), from + row * rows_.vectors + rows_.thread, 16);
      }
    }
    __pipeline_commit();
  }
  const Rows<kRms>& rows_;
  const void* inputs_[kInputs];
  float2 moments_;
  int stage_ = 0;
};

template <typename T, bool kRms, int kThreads>
__global__ void __launch_bounds__(kThreads, 1) backward_kernel(NormBackward p, NormGrid grid) {
  __shared__ float2 scratch[2][kThreads / 32];
  const int threads = grid.threads, groups = grid.groups, warps = threads / 32;
  const int group = threadIdx.x / threads;
  const Rows<kRms> rows{
      p, Walk{int64_t(blockIdx.x) * groups + group, p.rows, int64_t(gridDim.x) * groups}, p.n / 8,
      int(threadIdx.x) % threads};
  using Ahead = std::conditional_t<kThreads == kWideThreads, NextRows<kRms>, NextRow<kRms>>;
  Ahead ahead(rows);
  const uint4 weight = rows.load(p.weight, 0), bias = rows.load(p.output ? p.bias : nullptr, 0);
  clear(p.cleared);
  float dweight[8] = {}, dbias[8] = {}, columns[8] = {};
  int buffer = 0;
  uint32_t own = 0;
  for (int64_t row = rows.walk.first; row < rows.walk.end; row += rows.walk.step, buffer ^= 1) {
    const RowPart part = ahead.take(row);
    float x[8], g[8], w[8], sum = 0, product = 0;
    unpack<T>(part.x, x);
    unpack<T>(part.gradient, g);
    unpack<T>(weight, w);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      x[j] = (x[j] - part.mean) * part.rstd;
      dweight[j] += g[j] * x[j];
      if constexpr (!kRms) dbias[j] += g[j], sum += g[j] * w[j];
      product += g[j] * w[j] * x[j];
    }
    if constexpr (!kRms) sum = warp_sum(sum);
    product = warp_sum(product);
    if ((threadIdx.x & 31) == 0) scratch[buffer][threadIdx.x >> 5] = make_float2(sum, product);
    synchronize_group(group, threads);
    sum = product = 0;
#pragma unroll 4
    for (int k = 0; k < warps; ++k) {
      const float2 other = scratch[buffer][group * warps + k];
      sum += other.x, product += other.y;
    }
    sum /= p.n, product /= p.n;
    if (!rows.active()) continue;
    float dx[8], output[8];
    unpack<T>(part.residual, dx);
    unpack<T>(bias, output);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      dx[j] += part.rstd * (g[j] * w[j] - sum - x[j] * product);
      columns[j] += dx[j];
      output[j] += x[j] * w[j];
    }
    const int64_t at = row * rows.vectors + rows.thread;
    static_cast<uint4*>(p.dx)[at] = pack<T>(dx);
    take_largest(own, dx);
    if (p.output) static_cast<uint4*>(p.output)[at] = pack<T>(output);
  }
  __pipeline_wait_prior(0);
  hand_largest<T>(own, p.largest);
  __syncthreads();
  float* shared = reinterpret_cast<float*>(shared_pieces) + rows.thread * 8;
  const auto store_sums = [&](float* to) {  // as [3, n]
    store(to, dweight);
    if constexpr (!kRms) store(to + p.n, dbias);
    if (p.columns) store(to + 2 * p.n, columns);
  };
  if (group > 0 && rows.active()) store_sums(shared + (group - 1) * 3 * p.n);
  __syncthreads();
  if (group > 0 || !rows.active()) return;
  for (int k = 0; k + 1 < groups; ++k, shared += 3 * p.n) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      dweight[j] += shared[j];
      if constexpr (!kRms) dbias[j] += shared[p.n + j];
      if (p.columns) columns[j] += shared[2 * p.n + j];
    }
  }
  store_sums(p.partial + int64_t(blockIdx.x) * 3 * p.n + rows.thread * 8);
}

int multiprocessors() {
  static const int count = [] {
    int device = 0, value = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device);
    return value;
  }();
  return count;
}

template <typename Function>
void with_kind(bool rms, Function&& function) {
  if (rms) {
    function(std::true_type{});
  } else {
    function(std::false_type{});
  }
}

}  // namespace

void norm_forward(Type type, const NormForward& arguments, cudaStream_t stream) {
  const int n = arguments.n;
  with_16_bit_type(type, [&](auto tag) {
    with_kind(!arguments.bias, [&](auto rms) {
      using T = typename decltype(tag)::type;
      constexpr bool kRms = decltype(rms)::value;
      const auto launch = [&](auto kernel, int rows_per_block, int threads = 128) {
        const int64_t blocks = (arguments.rows + rows_per_block - 1) / rows_per_block;
        kernel<<<unsigned(blocks), threads, 0, stream>>>(
            static_cast<const uint4*>(arguments.x), static_cast<const uint4*>(arguments.weight),
            static_cast<const uint4*>(arguments.bias), static_cast<uint4*>(arguments.output),
            arguments.mean, arguments.rstd, arguments.rows, n, arguments.epsilon, arguments.cleared,
            arguments.largest);
      };
      if (n <= 1024) {
        launch(forward_kernel<T, 1, kRms>, 4);
      } else if (n <= 2048) {
        launch(forward_kernel<T, 2, kRms>, 2);
      } else if (n <= 4096) {
        launch(forward_kernel<T, 4, kRms>, 1);
      } else {
        launch(forward_kernel<T, 8, kRms>, 1, 256);
      }
    });
  });
}

int norm_parts(int64_t rows, int n) { return norm_grid(rows, n, multiprocessors()).blocks; }

void norm_backward(Type type, const NormBackward& arguments, cudaStream_t stream) {
  const int n = arguments.n;
  const NormGrid grid = norm_grid(arguments.rows, n, multiprocessors());
  with_16_bit_type(type, [&](auto tag) {
    with_kind(!arguments.bias, [&](auto rms) {
      using T = typename decltype(tag)::type;
      constexpr bool kRms = decltype(rms)::value;
      const int threads = grid.groups * grid.threads;
      if (n <= kMaxNarrowNorm) {
        backward_kernel<T, kRms, kNarrowNormThreads>
            <<<grid.blocks, threads, (grid.groups - 1) * 3 * n * sizeof(float), stream>>>(arguments,
                                                                                          grid);
      } else {
        constexpr auto* kKernel = &backward_kernel<T, kRms, kWideThreads>;
        constexpr int kBytes = kStages * kInputs * kWideThreads * int(sizeof(uint4));
        allow_shared_memory<kKernel>(kBytes);
        kKernel<<<grid.blocks, threads, kBytes / kWideThreads * threads, stream>>>(arguments, grid);
      }
    });
  });
}

}  // namespace tessera::ops::cuda
