// SPDX-License-Identifier: MIT
// Largest magnitudes of matrices and rows, and casts to 8 bits.
#include <cuda_fp8.h>

#include <cfloat>

#include "lib/ops/cuda/dispatch.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kVector = 8;

// Eight numbers from x on, in fp32.
template <typename T>
__device__ __forceinline__ void load(const T* x, float (&out)[kVector]) {
  constexpr int kParts = kVector / kWidth<T>;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    float values[kWidth<T>];
    unpack<T>(reinterpret_cast<const uint4*>(x)[part], values);
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) out[part * kWidth<T> + i] = values[i];
  }
}

// Bits of magnitudes have their order, with NaN above infinity.
__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffU; }

__device__ __forceinline__ uint32_t warp_max(uint32_t value) {
  return __reduce_max_sync(0xffffffffU, value);
}

template <typename T>
__device__ __forceinline__ uint32_t largest_of(const T* x) {
  float values[kVector];
  load(x, values);
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) largest = max(largest, magnitude(values[i]));
  return largest;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    matrix_largest_kernel(const T* x, int64_t vectors, uint32_t* result) {
  __shared__ uint32_t of_warps[kWarps];
  uint32_t largest = 0;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < vectors;
       i += int64_t(gridDim.x) * kThreads) {
    largest = max(largest, largest_of(x + i * kVector));
  }
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  largest = warp_max(threadIdx.x < kWarps ? of_warps[threadIdx.x] : 0);
  if (threadIdx.x == 0) atomicMax(result, largest);
}

// A warp a row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    row_largest_kernel(const T* x, int64_t rows, int64_t inner, uint32_t* result) {
  const int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= rows) return;
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x % 32; i < inner / kVector; i += 32) {
    largest = max(largest, largest_of(x + row * inner + i * kVector));
  }
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) result[row] = largest;
}

constexpr int kColumnRows = 256;  // stored rows of a block

// Of a matrix stored [inner, rows]; a lane has eight of its columns, a warp every eighth stored
// row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    column_largest_kernel(const T* x, int64_t rows, int64_t inner, uint32_t* result) {
  __shared__ uint32_t of_warps[kWarps][32 * kVector];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int64_t column = (int64_t(blockIdx.x) * 32 + lane) * kVector;
  uint32_t largest[kVector] = {};
  const int64_t first = int64_t(blockIdx.y) * kColumnRows;
  for (int64_t i = first + warp; i < min(first + kColumnRows, inner) && column < rows;
       i += kWarps) {
    float values[kVector];
    load(x + i * rows + column, values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) largest[j] = max(largest[j], magnitude(values[j]));
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j) of_warps[warp][lane * kVector + j] = largest[j];
  __syncthreads();
  const int64_t mine = int64_t(blockIdx.x) * 32 * kVector + threadIdx.x;
  if (mine >= rows) return;
  uint32_t most = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) most = max(most, of_warps[w][threadIdx.x]);
  atomicMax(result + mine, most);
}

// As fp8_cast() of lib/ops/reference.cpp; NaN stays.
__device__ __forceinline__ float scale_of(float largest, float largest_code) {
  if (largest == 0) return 1;
  const float scale = __fdiv_rn(largest, largest_code);
  return scale < FLT_MIN ? FLT_MIN : scale;
}

template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ uint32_t code(float x, float scale) {
  return __nv_cvt_float_to_fp8(__fdiv_rn(x, scale), __NV_SATFINITE, kFormat);
}

template <__nv_fp8_interpretation_t kFormat>
constexpr float kLargestCode = kFormat == __NV_E4M3 ? 448.0F : 57344.0F;

template <typename T, __nv_fp8_interpretation_t kFormat>
__global__ void __launch_bounds__(kThreads) cast_kernel(Fp8Cast p) {
  const int64_t vectors = p.rows * p.inner / kVector;
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const int64_t row = p.rowwise ? i * kVector / p.inner : 0;
  const float scale = scale_of(p.largest[row], kLargestCode<kFormat>);
  if (p.rowwise ? i * kVector % p.inner == 0 : i == 0) p.scale[row] = scale;
  float values[kVector];
  load(static_cast<const T*>(p.x) + i * kVector, values);
  uint32_t words[2] = {};
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    words[j / 4] |= code<kFormat>(values[j], scale) << 8 * (j % 4);
  }
  static_cast<uint2*>(p.codes)[i] = make_uint2(words[0], words[1]);
}

// A tile of a block: stored columns, which become rows, and stored rows, which become inner. A
// thread turns 4 x 8 numbers in registers, so that shared memory holds words of 4 codes; rows of an
// odd number of words meet few banks twice.
constexpr int kTileRows = 64, kTileInner = 128, kWords = kTileInner / 4;

template <typename T, __nv_fp8_interpretation_t kFormat>
__global__ void __launch_bounds__(kThreads) turned_cast_kernel(Fp8Cast p) {
  __shared__ uint32_t tile[kTileRows][kWords + 1];
  const int64_t first_row = int64_t(blockIdx.x) * kTileRows,
                first_inner = int64_t(blockIdx.y) * kTileInner;
  constexpr int kVectors = kTileRows / kVector;  // of a stored row
  const int column = int(threadIdx.x) % kVectors * kVector, word = int(threadIdx.x) / kVectors;
  const int64_t row = first_row + column, inner = first_inner + word * 4;
  if (row < p.rows && inner < p.inner) {
    float scale[kVector];
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      scale[j] = scale_of(p.largest[p.rowwise ? row + j : 0], kLargestCode<kFormat>);
      if (inner == 0 && (p.rowwise || row + j == 0)) p.scale[row + j] = scale[j];
    }
    uint32_t words[kVector] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float values[kVector];
      load(static_cast<const T*>(p.x) + (inner + i) * p.rows + row, values);
#pragma unroll
      for (int j = 0; j < kVector; ++j) words[j] |= code<kFormat>(values[j], scale[j]) << 8 * i;
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) tile[column + j][word] = words[j];
  }
  __syncthreads();
  constexpr int kParts = kTileInner / 16;  // pieces of 16 bytes of a row
  const int part = int(threadIdx.x) % kParts;
  for (int own = int(threadIdx.x) / kParts; own < kTileRows; own += kThreads / kParts) {
    if (first_row + own >= p.rows || first_inner + part * 16 >= p.inner) continue;
    const uint32_t* const words = &tile[own][part * 4];
    uint8_t* const to =
        static_cast<uint8_t*>(p.codes) + (first_row + own) * p.inner + first_inner + part * 16;
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

unsigned blocks(int64_t items, int64_t each) {
  return static_cast<unsigned>((items + each - 1) / each);
}

template <typename T, __nv_fp8_interpretation_t kFormat>
void cast(const Fp8Cast& p, cudaStream_t stream) {
  if (p.turned) {
    const dim3 grid(blocks(p.rows, kTileRows), blocks(p.inner, kTileInner));
    turned_cast_kernel<T, kFormat><<<grid, kThreads, 0, stream>>>(p);
  } else {
    cast_kernel<T, kFormat>
        <<<blocks(p.rows * p.inner / kVector, kThreads), kThreads, 0, stream>>>(p);
  }
}

}  // namespace

void fp8_largest(Type type, const Fp8Cast& p, float* largest, cudaStream_t stream) {
  auto* const result = reinterpret_cast<uint32_t*>(largest);
  with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto* const x = static_cast<const T*>(p.x);
    if (!p.rowwise) {
      constexpr int64_t kMostBlocks = 132 * 8;
      const int64_t vectors = p.rows * p.inner / kVector;
      const auto grid = static_cast<unsigned>(
          vectors < kMostBlocks * kThreads ? (vectors + kThreads - 1) / kThreads : kMostBlocks);
      matrix_largest_kernel<T><<<grid, kThreads, 0, stream>>>(x, vectors, result);
    } else if (p.turned) {
      const dim3 grid(blocks(p.rows, 32 * kVector), blocks(p.inner, kColumnRows));
      column_largest_kernel<T><<<grid, kThreads, 0, stream>>>(x, p.rows, p.inner, result);
    } else {
      row_largest_kernel<T>
          <<<blocks(p.rows, kWarps), kThreads, 0, stream>>>(x, p.rows, p.inner, result);
    }
  });
}

void fp8_cast(Type type, const Fp8Cast& p, cudaStream_t stream) {
  with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (p.format == Fp8Format::kE4m3) {
      cast<T, __NV_E4M3>(p, stream);
    } else {
      cast<T, __NV_E5M2>(p, stream);
    }
  });
}

}  // namespace tessera::ops::cuda
