// Layer norm and root-mean-square norm with fp32 statistics. The latter takes no mean off and has
// no bias (kRms). Forward: kWarps warps hold one row in registers, two passes over them (mean, then
// variance). Backward: a group of threads owns 8 columns each and walks over rows, so that the
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

constexpr int kRows = 4;  // rows in flight per group, backward

// Two groups when a row needs 128 threads or fewer, else one.
int group_threads(int n) { return (n / 8 + 31) / 32 * 32; }
int group_count(int n) { return group_threads(n) <= 128 ? 2 : 1; }
int blocks_per_multiprocessor(int n) { return group_threads(n) <= 256 ? 2 : 1; }

template <typename T, int kMaxThreads, bool kRms>
__global__ void __launch_bounds__(kMaxThreads, 512 / kMaxThreads)
    backward_kernel(NormBackward p, int threads, int groups) {
  extern __shared__ float combined[];  // [3 n] of the second group
  __shared__ float2 scratch[2][kRows][kMaxThreads / 32];
  const int vectors = p.n / 8, warps = threads / 32;
  const int group = threadIdx.x / threads, thread = threadIdx.x % threads;
  const bool active = thread < vectors;
  const auto load = [&](const void* data, int64_t row) {
    return static_cast<const uint4*>(data)[row * vectors + thread];
  };
  const uint4 zero = make_uint4(0, 0, 0, 0);
  float w[8], b[8] = {}, dweight[8] = {}, dbias[8] = {}, columns[8] = {};
  unpack<T>(active ? load(p.weight, 0) : zero, w);
  clear(p.cleared);
  if constexpr (!kRms) unpack<T>(active && p.output ? load(p.bias, 0) : zero, b);
  // Every block has its share of the rows, so that few rows do not leave some with twice the work.
  const int64_t begin = p.rows * blockIdx.x / gridDim.x;
  const int64_t end = p.rows * (blockIdx.x + 1) / gridDim.x;
  int buffer = 0;
  for (int64_t base = begin + group; base - group < end; base += groups * kRows, buffer ^= 1) {
    uint4 x[kRows], dy[kRows], residual[kRows];
    float mean[kRows], rstd[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = base + i * groups;
      const bool valid = active && row < end;
      x[i] = valid ? load(p.x, row) : zero;
      dy[i] = valid ? load(p.gradient, row) : zero;
      residual[i] = valid && p.residual ? load(p.residual, row) : zero;
      mean[i] = !kRms && valid ? p.mean[row] : 0;
      rstd[i] = valid ? p.rstd[row] : 0;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (base + i * groups >= end) break;
      float value[8], g[8], sum = 0, product = 0;
      unpack<T>(x[i], value);
      unpack<T>(dy[i], g);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float normal = (value[j] - mean[i]) * rstd[i];
        dweight[j] += g[j] * normal;
        if constexpr (!kRms) dbias[j] += g[j], sum += g[j] * w[j];
        product += g[j] * w[j] * normal;
      }
      if constexpr (!kRms) sum = warp_sum(sum);
      product = warp_sum(product);
      if ((threadIdx.x & 31) == 0) scratch[buffer][i][threadIdx.x >> 5] = make_float2(sum, product);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = base + i * groups;
      if (row >= end) break;
      float sum = 0, product = 0;
      for (int k = 0; k < warps; ++k) {
        const float2 part = scratch[buffer][i][group * warps + k];
        sum += part.x, product += part.y;
      }
      sum /= p.n, product /= p.n;
      if (!active) continue;
      float value[8], g[8], r[8];
      unpack<T>(x[i], value);
      unpack<T>(dy[i], g);
      unpack<T>(residual[i], r);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float normal = (value[j] - mean[i]) * rstd[i];
        r[j] += rstd[i] * (g[j] * w[j] - sum - normal * product);
        columns[j] += r[j];
        value[j] = normal * w[j] + b[j];
      }
      const int64_t at = row * vectors + thread;
      static_cast<uint4*>(p.dx)[at] = pack<T>(r);
      if (p.output) static_cast<uint4*>(p.output)[at] = pack<T>(value);
    }
  }
  if (group == 1 && active) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      combined[thread * 8 + j] = dweight[j];
      combined[p.n + thread * 8 + j] = dbias[j];
      combined[2 * p.n + thread * 8 + j] = columns[j];
    }
  }
  __syncthreads();
  if (group == 0 && active) {
    float* out = p.partial + int64_t(blockIdx.x) * 3 * p.n + thread * 8;
    const float* other = combined + thread * 8;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      out[j] = dweight[j] + (groups == 2 ? other[j] : 0);
      out[p.n + j] = dbias[j] + (groups == 2 ? other[p.n + j] : 0);
      out[2 * p.n + j] = columns[j] + (groups == 2 ? other[2 * p.n + j] : 0);
    }
  }
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
  const int groups = group_count(n), blocks = multiprocessors() * blocks_per_multiprocessor(n);
  return int(std::min<int64_t>(blocks, (rows + groups - 1) / groups));
}

void norm_backward(Type type, const NormBackward& arguments, cudaStream_t stream) {
  const int threads = group_threads(arguments.n), groups = group_count(arguments.n);
  const int blocks = norm_parts(arguments.rows, arguments.n);
  with_16_bit_type(type, [&](auto tag) {
    with_kind(!arguments.bias, [&](auto rms) {
      using T = typename decltype(tag)::type;
      constexpr bool kRms = decltype(rms)::value;
      if (groups == 2) {
        backward_kernel<T, 256, kRms>
            <<<blocks, 2 * threads, 3 * arguments.n * sizeof(float), stream>>>(arguments, threads,
                                                                               groups);
      } else {
        backward_kernel<T, 512, kRms><<<blocks, threads, 0, stream>>>(arguments, threads, groups);
      }
    });
  });
}

}  // namespace tessera::ops::cuda
