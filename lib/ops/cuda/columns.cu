// SPDX-License-Identifier: MIT
// GELU, dropout and the column sums that become bias gradients. Column kernels: a block covers 64
// columns (8 threads of 16 bytes) and a strided share of the rows.
#include <algorithm>

#include "lib/ops/cuda/dispatch.cuh"
#include "lib/ops/cuda/largest.cuh"
#include "lib/ops/cuda/philox.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256, kBlockColumns = 64, kBlockRows = kThreads / 8;

template <typename T, typename Function>
__global__ void __launch_bounds__(kThreads)
    map_kernel(const uint4* a, const uint4* b, uint4* out, int64_t vectors, float* largest,
               Function function) {
  const int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  uint32_t own = 0;
  if (at < vectors) {
    float x[8], y[8];
    unpack<T>(a[at], x);
    unpack<T>(b[at], y);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = function(x[j], y[j]);
    out[at] = pack<T>(x);
    take_largest(own, x);
  }
  hand_largest<T>(own, largest);
}

struct Gelu {
  __device__ float operator()(float x, float) const { return gelu(x); }
};
struct GeluBackward {
  __device__ float operator()(float gradient, float x) const {
    float derivative;
    gelu_with_derivative(x, derivative);
    return gradient * derivative;
  }
};

template <typename T, typename Function>
void map(const void* a, const void* b, void* out, int64_t count, float* largest, Function function,
         cudaStream_t stream) {
  const int64_t vectors = count / 8;
  map_kernel<T><<<unsigned((vectors + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      static_cast<const uint4*>(a), static_cast<const uint4*>(b), static_cast<uint4*>(out), vectors,
      largest, function);
}

// Sums the block's rows per column and writes them as part blockIdx.y.
__device__ __forceinline__ void write_columns(const float (&sum)[8], float* partial, int n) {
  __shared__ float scratch[kBlockRows][kBlockColumns + 1];
  const int lane = threadIdx.x % 8, row = threadIdx.x / 8;
#pragma unroll
  for (int j = 0; j < 8; ++j) scratch[row][lane * 8 + j] = sum[j];
  __syncthreads();
  if (threadIdx.x < kBlockColumns) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < kBlockRows; ++i) total += scratch[i][threadIdx.x];
    partial[int64_t(blockIdx.y) * n + blockIdx.x * kBlockColumns + threadIdx.x] = total;
  }
}

// This thread's first vector, its row stride, and the end.
struct Walk {
  int64_t at, step, end;
  __device__ Walk(int64_t rows, int n) {
    const int64_t vectors = n / 8;
    at = (int64_t(blockIdx.y) * kBlockRows + threadIdx.x / 8) * vectors + blockIdx.x * 8 +
         threadIdx.x % 8;
    step = int64_t(gridDim.y) * kBlockRows * vectors;
    end = rows * vectors;
  }
};

// Prefetches the next row while a thread works on one. kLargest costs registers.
template <typename T, bool kLargest>
__global__ void __launch_bounds__(kThreads, 5)
    gelu_backward_columns_kernel(uint4* gradient, const uint4* x, uint4* output, float* partial,
                                 float* largest, int64_t rows, int n) {
  float sum[8] = {};
  uint32_t own = 0;
  const Walk walk(rows, n);
  const auto load = [&](const uint4* data, int64_t at) {
    return at < walk.end ? data[at] : make_uint4(0, 0, 0, 0);
  };
  uint4 next_gradient = load(gradient, walk.at), next_x = load(x, walk.at);
  for (int64_t at = walk.at; at < walk.end; at += walk.step) {
    float g[8], value[8];
    unpack<T>(next_gradient, g);
    unpack<T>(next_x, value);
    next_gradient = load(gradient, at + walk.step), next_x = load(x, at + walk.step);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float derivative;
      value[j] = gelu_with_derivative(value[j], derivative);
      g[j] *= derivative;
      sum[j] += g[j];
    }
    gradient[at] = pack<T>(g);
    if (output) output[at] = pack<T>(value);
    if constexpr (kLargest) take_largest(own, g);
  }
  write_columns(sum, partial, n);
  if constexpr (kLargest) hand_largest<T>(own, largest);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    dropout_columns_kernel(const uint4* gradient, uint4* output, float* partial, int64_t rows,
                           int n, DropoutDraw given) {
  const DropoutDraw draw = known(given);
  float sum[8] = {};
  const Walk walk(rows, n);
#pragma unroll 2
  for (int64_t at = walk.at; at < walk.end; at += walk.step) {
    float g[8], factor[8];
    unpack<T>(gradient[at], g);
    draw_factors(draw, draw.first + at * 8, factor);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      g[j] *= factor[j];
      sum[j] += g[j];
    }
    output[at] = pack<T>(g);
  }
  write_columns(sum, partial, n);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    dropout_add_kernel(const uint4* x, const uint4* residual, uint4* output, int64_t vectors,
                       DropoutDraw given) {
  const DropoutDraw draw = known(given);
  const int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= vectors) return;
  constexpr int kCount = kWidth<T>;
  float value[kCount], added[kCount], factor[kCount];
  unpack<T>(x[at], value);
  unpack<T>(residual ? residual[at] : make_uint4(0, 0, 0, 0), added);
  draw_factors(draw, draw.first + at * kCount, factor);
#pragma unroll
  for (int j = 0; j < kCount; ++j) value[j] = value[j] * factor[j] + added[j];
  output[at] = pack<T>(value);
}

// One element per thread, any layout.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    dropout_add_each_kernel(const T* x, const T* residual, T* output, int64_t count,
                            DropoutDraw given) {
  const DropoutDraw draw = known(given);
  const int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= count) return;
  const float added = residual ? to_float(residual[at]) : 0.0F;
  output[at] = from_float<T>(to_float(x[at]) * draw_factor(draw, draw.first + at) + added);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(const uint4* x, float* partial, int64_t rows, int n) {
  float sum[8] = {};
  const Walk walk(rows, n);
#pragma unroll 4
  for (int64_t at = walk.at; at < walk.end; at += walk.step) {
    float value[8];
    unpack<T>(x[at], value);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += value[j];
  }
  write_columns(sum, partial, n);
}

constexpr int kLanes = 32, kTeams = 16;

template <typename T>
__global__ void __launch_bounds__(kLanes* kTeams) add_column_sums_kernel(ColumnItems items) {
  const ColumnItem& item = items.items[blockIdx.y];
  const int column = blockIdx.x * kLanes + threadIdx.x;
  __shared__ float scratch[kTeams][kLanes + 1];
  float sum = 0;
  if (column < item.n) {
#pragma unroll 4
    for (int part = threadIdx.y; part < item.parts; part += kTeams) {
      sum += item.partial[part * item.stride + column];
    }
  }
  scratch[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= item.n) return;
#pragma unroll
  for (int i = 1; i < kTeams; ++i) sum += scratch[i][threadIdx.x];
  T* gradient = static_cast<T*>(item.gradient) + column;
  *gradient = from_float<T>(to_float(*gradient) + sum);
}

}  // namespace

void gelu_forward(Type type, const void* x, void* output, int64_t count, float* largest,
                  cudaStream_t stream) {
  with_16_bit_type(type, [&](auto tag) {
    map<typename decltype(tag)::type>(x, x, output, count, largest, Gelu{}, stream);
  });
}

void gelu_backward(Type type, const void* gradient, const void* x, void* dx, int64_t count,
                   cudaStream_t stream) {
  with_16_bit_type(type, [&](auto tag) {
    map<typename decltype(tag)::type>(gradient, x, dx, count, nullptr, GeluBackward{}, stream);
  });
}

void gelu_backward_columns(Type type, void* gradient, const void* x, void* output, float* partial,
                           float* largest, int64_t rows, int n, cudaStream_t stream) {
  with_16_bit_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto kernel =
        largest ? gelu_backward_columns_kernel<T, true> : gelu_backward_columns_kernel<T, false>;
    kernel<<<dim3(n / kBlockColumns, kGeluParts), kThreads, 0, stream>>>(
        static_cast<uint4*>(gradient), static_cast<const uint4*>(x), static_cast<uint4*>(output),
        partial, largest, rows, n);
  });
}

void dropout_add(Type type, const void* x, const void* residual, void* output, int64_t count,
                 const DropoutDraw& draw, cudaStream_t stream) {
  const auto blocks = [](int64_t threads) { return unsigned((threads + kThreads - 1) / kThreads); };
  const auto address = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(residual) |
                       reinterpret_cast<uintptr_t>(output);
  with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (address % 16 == 0 && count % kWidth<T> == 0 && draw.first % kPhiloxNumbers == 0) {
      const int64_t vectors = count / kWidth<T>;
      dropout_add_kernel<T><<<blocks(vectors), kThreads, 0, stream>>>(
          static_cast<const uint4*>(x), static_cast<const uint4*>(residual),
          static_cast<uint4*>(output), vectors, draw);
    } else {
      dropout_add_each_kernel<T><<<blocks(count), kThreads, 0, stream>>>(
          static_cast<const T*>(x), static_cast<const T*>(residual), static_cast<T*>(output), count,
          draw);
    }
  });
}

void dropout_columns(Type type, const void* gradient, void* output, float* partial, int64_t rows,
                     int n, const DropoutDraw& draw, cudaStream_t stream) {
  with_16_bit_type(type, [&](auto tag) {
    dropout_columns_kernel<typename decltype(tag)::type>
        <<<dim3(n / kBlockColumns, kColumnParts), kThreads, 0, stream>>>(
            static_cast<const uint4*>(gradient), static_cast<uint4*>(output), partial, rows, n,
            draw);
  });
}

void column_sums(Type type, const void* x, float* partial, int64_t rows, int n,
                 cudaStream_t stream) {
  with_16_bit_type(type, [&](auto tag) {
    column_sums_kernel<typename decltype(tag)::type>
        <<<dim3(n / kBlockColumns, kColumnParts), kThreads, 0, stream>>>(
            static_cast<const uint4*>(x), partial, rows, n);
  });
}

void add_column_sums(Type type, const ColumnItems& items, cudaStream_t stream) {
  int columns = 0;
  for (int i = 0; i < items.count; ++i) columns = std::max(columns, items.items[i].n);
  with_type(type, [&](auto tag) {
    add_column_sums_kernel<typename decltype(tag)::type>
        <<<dim3((columns + kLanes - 1) / kLanes, items.count), dim3(kLanes, kTeams), 0, stream>>>(
            items);
  });
}

}  // namespace tessera::ops::cuda
