// SPDX-License-Identifier: MIT
// Layer norm and root-mean-square norm with fp32 statistics. The latter takes no mean off and has
// no bias (kRms). Forward: kWarps warps hold one row in registers, two passes over them (mean, then
// variance). Backward: threads of a group own 8 columns each and walk over rows, so that the
// column sums for weight, bias and dx stay in registers until the end.
#include <algorithm>
#include <type_traits>

#include "lib/ops/cuda/dispatch.cuh"

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
__global__ void __launch_bounds__(128)
    forward_kernel(const uint4* x, const uint4* weight, const uint4* bias, uint4* output,
                   float* mean, float* rstd, int64_t rows, int n, float epsilon, Cleared cleared) {
  constexpr int kThreads = 32 * kWarps;
  __shared__ float scratch[2][4];
  const int group = threadIdx.x / kThreads, thread = threadIdx.x % kThreads;
  const int64_t row = int64_t(blockIdx.x) * (4 / kWarps) + group;
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
  if (row >= rows) return;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = i * kThreads + thread;
    if (at >= vectors) break;
    float value[8], w[8], b[8] = {};
    unpack<T>(raw[i], value);
    unpack<T>(weight[at], w);
    if constexpr (!kRms) unpack<T>(bias[at], b);
#pragma unroll
    for (int j = 0; j < 8; ++j) value[j] = (value[j] - row_mean) * row_rstd * w[j] + b[j];
    output[row * vectors + at] = pack<T>(value);
  }
  if (thread != 0) return;
  if constexpr (!kRms) mean[row] = row_mean;
  rstd[row] = row_rstd;
}

// One block a multiprocessor. Every group of threads takes one row at a time, while its next one is
// on its way.
constexpr int kBlockThreads = 512, kMaxGroups = 8;
int group_threads(int n) { return (n / 8 + 31) / 32 * 32; }
int group_count(int n) { return std::min(kMaxGroups, kBlockThreads / group_threads(n)); }

// A group's threads only; the others may be elsewhere.
__device__ __forceinline__ void synchronize_group(int group, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
}

__device__ __forceinline__ void store(float* to, const float (&value)[8]) {
  reinterpret_cast<float4*>(to)[0] = make_float4(value[0], value[1], value[2], value[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(value[4], value[5], value[6], value[7]);
}

// A thread's part of a row.
struct RowPart {
  uint4 x, gradient, residual;
  float mean, rstd;
};

template <typename T, bool kRms>
__global__ void __launch_bounds__(kBlockThreads, 1)
    backward_kernel(NormBackward p, int threads, int groups) {
  extern __shared__ float4 combined[];  // [groups - 1, 3 n] fp32
  __shared__ float2 scratch[2][kBlockThreads / 32];
  const int vectors = p.n / 8, warps = threads / 32;
  const int group = threadIdx.x / threads, thread = threadIdx.x % threads;
  const bool active = thread < vectors;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  const auto load = [&](const void* data, int64_t row) {
    return active && data ? static_cast<const uint4*>(data)[row * vectors + thread] : zero;
  };
  // Every block has its share of the rows, so that few rows do not leave some with twice the work.
  const int64_t begin = p.rows * blockIdx.x / gridDim.x;
  const int64_t end = p.rows * (blockIdx.x + 1) / gridDim.x;
  const auto fetch = [&](int64_t row) {
    if (row >= end) return RowPart{zero, zero, zero, 0, 0};
    return RowPart{load(p.x, row), load(p.gradient, row), load(p.residual, row),
                   kRms ? 0 : p.mean[row], p.rstd[row]};
  };
  RowPart part = fetch(begin + group);
  float w[8], b[8], dweight[8] = {}, dbias[8] = {}, columns[8] = {};
  unpack<T>(load(p.weight, 0), w);
  unpack<T>(load(p.output ? p.bias : nullptr, 0), b);
  clear(p.cleared);
  int buffer = 0;
  for (int64_t row = begin + group; row < end; row += groups, buffer ^= 1) {
    const RowPart next = fetch(row + groups);
    float x[8], g[8], sum = 0, product = 0;
    unpack<T>(part.x, x);
    unpack<T>(part.gradient, g);
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
    if (active) {
      float dx[8], output[8];
      unpack<T>(part.residual, dx);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        dx[j] += part.rstd * (g[j] * w[j] - sum - x[j] * product);
        columns[j] += dx[j];
        output[j] = x[j] * w[j] + b[j];
      }
      const int64_t at = row * vectors + thread;
      static_cast<uint4*>(p.dx)[at] = pack<T>(dx);
      if (p.output) static_cast<uint4*>(p.output)[at] = pack<T>(output);
    }
    part = next;
  }
  float* shared = reinterpret_cast<float*>(combined) + thread * 8;
  if (group > 0 && active) {
    float* out = shared + (group - 1) * 3 * p.n;
    store(out, dweight);
    store(out + p.n, dbias);
    store(out + 2 * p.n, columns);
  }
  __syncthreads();
  if (group > 0 || !active) return;
  for (int k = 0; k + 1 < groups; ++k, shared += 3 * p.n) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      dweight[j] += shared[j];
      dbias[j] += shared[p.n + j];
      columns[j] += shared[2 * p.n + j];
    }
  }
  float* out = p.partial + int64_t(blockIdx.x) * 3 * p.n + thread * 8;
  store(out, dweight);
  store(out + p.n, dbias);
  store(out + 2 * p.n, columns);
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

void norm_forward(Type type, const void* x, const void* weight, const void* bias, void* output,
                  float* mean, float* rstd, int64_t rows, int n, float epsilon, Cleared cleared,
                  cudaStream_t stream) {
  with_16_bit_type(type, [&](auto tag) {
    with_kind(!bias, [&](auto rms) {
      using T = typename decltype(tag)::type;
      constexpr bool kRms = decltype(rms)::value;
      const auto launch = [&](auto kernel, int rows_per_block) {
        kernel<<<unsigned((rows + rows_per_block - 1) / rows_per_block), 128, 0, stream>>>(
            static_cast<const uint4*>(x), static_cast<const uint4*>(weight),
            static_cast<const uint4*>(bias), static_cast<uint4*>(output), mean, rstd, rows, n,
            epsilon, cleared);
      };
      if (n <= 1024) {
        launch(forward_kernel<T, 1, kRms>, 4);
      } else if (n <= 2048) {
        launch(forward_kernel<T, 2, kRms>, 2);
      } else {
        launch(forward_kernel<T, 4, kRms>, 1);
      }
    });
  });
}

int norm_parts(int64_t rows, int n) {
  const int groups = group_count(n);
  return int(std::min<int64_t>(multiprocessors(), (rows + groups - 1) / groups));
}

void norm_backward(Type type, const NormBackward& arguments, cudaStream_t stream) {
  const int n = arguments.n, threads = group_threads(n), groups = group_count(n);
  const size_t shared_bytes = (groups - 1) * 3 * n * sizeof(float);
  with_16_bit_type(type, [&](auto tag) {
    with_kind(!arguments.bias, [&](auto rms) {
      using T = typename decltype(tag)::type;
      backward_kernel<T, decltype(rms)::value>
          <<<norm_parts(arguments.rows, n), groups * threads, shared_bytes, stream>>>(
              arguments, threads, groups);
    });
  });
}

}  // namespace tessera::ops::cuda
