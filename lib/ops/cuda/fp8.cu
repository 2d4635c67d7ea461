// SPDX-License-Identifier: MIT
// Largest magnitudes of matrices and rows, and casts to 8 bits.
#include <cuda_fp8.h>

#include <cfloat>

#include "lib/ops/cuda/dispatch.cuh"
#include "lib/ops/cuda/largest.cuh"

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

template <typename T>
__device__ __forceinline__ uint32_t largest_of(const T* x) {
  float values[kVector];
  load(x, values);
  uint32_t largest = 0;
  take_largest(largest, values);
  return largest;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    matrix_largest_kernel(const T* x, int64_t vectors, float* result) {
  uint32_t largest = 0;
  const int64_t step = int64_t(gridDim.x) * kThreads;
  int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  constexpr int kAtOnce = 4;  // loads in flight
  for (; i + (kAtOnce - 1) * step < vectors; i += kAtOnce * step) {
    uint32_t each[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) each[k] = largest_of(x + (i + k * step) * kVector);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) largest = max(largest, each[k]);
  }
  for (; i < vectors; i += step) largest = max(largest, largest_of(x + i * kVector));
  hand_largest<float>(largest, result);
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

// Quotients by one scale, with the bits of a division: a product with the rounded reciprocal and
// one correction (Markstein 1990), where neither underflows; elsewhere a division.
class Divider {
 public:
  // The host's compiler sees the list of initial values, and has no __frcp_rn().
  __device__ __forceinline__ explicit Divider(float scale)
      : scale_(scale), exact_(scale > 0x1p-80F && scale < 0x1p120F) {
    inverse_ = __frcp_rn(scale);
  }
  __device__ __forceinline__ float operator()(float x) const {
    if (!exact_) return __fdiv_rn(x, scale_);
    const float quotient = __fmul_rn(x, inverse_);
    const float corrected = __fmaf_rn(__fmaf_rn(-quotient, scale_, x), inverse_, quotient);
    return copysignf(corrected, x);  // zeros have signs
  }

 private:
  float scale_, inverse_;
  bool exact_;
};

// Two codes, the first in the low byte.
template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ uint32_t two_codes(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, kFormat);
}

template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ uint32_t code(float x, float scale) {
  return __nv_cvt_float_to_fp8(__fdiv_rn(x, scale), __NV_SATFINITE, kFormat);
}

template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ uint2 codes_of(const float (&x)[kVector], const Divider& divided) {
  uint32_t pairs[kVector / 2];
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    pairs[i] = two_codes<kFormat>(divided(x[2 * i]), divided(x[2 * i + 1]));
  }
  return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
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
  static_cast<uint2*>(p.codes)[i] = codes_of<kFormat>(values, Divider(scale));
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

// The transpose of 4 x 4 bytes, a row a word.
__device__ __forceinline__ void turn(uint32_t (&rows)[4]) {
  const uint32_t low = __byte_perm(rows[0], rows[1], 0x5140),
                 low_after = __byte_perm(rows[2], rows[3], 0x5140),
                 high = __byte_perm(rows[0], rows[1], 0x7362),
                 high_after = __byte_perm(rows[2], rows[3], 0x7362);
  rows[0] = __byte_perm(low, low_after, 0x5410), rows[1] = __byte_perm(low, low_after, 0x7632);
  rows[2] = __byte_perm(high, high_after, 0x5410), rows[3] = __byte_perm(high, high_after, 0x7632);
}

// A block has kSide x kSide numbers, a thread 8 x 8 of them. Shared memory holds the tile's
// transpose in words of 8 codes; the words of a row are permuted, so that the threads of a half
// warp meet all banks once when they write and when they read.
constexpr int kSide = 128, kSideVectors = kSide / kVector;

// Writes the transpose of the block's tile: codes has 8 codes of each of this thread's 8 rows.
__device__ __forceinline__ void write_turned(const uint2 (&codes)[kVector], const Fp8Turn& p) {
  __shared__ uint2 tile[kSide][kSideVectors];
  const int across = int(threadIdx.x) % kSideVectors, down = int(threadIdx.x) / kSideVectors;
  const int64_t first_row = int64_t(blockIdx.y) * kSide, first_column = int64_t(blockIdx.x) * kSide;
  uint32_t left[2][4], right[2][4];  // columns 0 to 3 and 4 to 7, of 4 rows each
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      left[half][i] = codes[half * 4 + i].x, right[half][i] = codes[half * 4 + i].y;
    }
    turn(left[half]);
    turn(right[half]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    tile[across * kVector + i][down ^ across] = make_uint2(left[0][i], left[1][i]);
    tile[across * kVector + 4 + i][down ^ across] = make_uint2(right[0][i], right[1][i]);
  }
  __syncthreads();
  constexpr int kPieces = kSide / 16;  // of 16 bytes of a row
  const int piece = int(threadIdx.x) % kPieces;
  const int64_t to = first_row + piece * 16;
#pragma unroll
  for (int own = int(threadIdx.x) / kPieces; own < kSide; own += kThreads / kPieces) {
    if (first_column + own >= p.inner || to >= p.stride) continue;
    const int odd = own & 1, order = own / kVector;
    const uint2 one = tile[own][(2 * piece + odd) ^ order],
                other = tile[own][(2 * piece + 1 - odd) ^ order];
    const uint2 low = odd != 0 ? other : one, high = odd != 0 ? one : other;
    *reinterpret_cast<uint4*>(static_cast<uint8_t*>(p.turned) + (first_column + own) * p.stride +
                              to) = make_uint4(low.x, low.y, high.x, high.y);
  }
}

template <typename T, __nv_fp8_interpretation_t kFormat>
__global__ void __launch_bounds__(kThreads) layouts_kernel(Fp8LayoutsCast p) {
  const float scale = scale_of(*p.largest, kLargestCode<kFormat>);
  const Divider divided(scale);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *p.scale = scale;
  const int across = int(threadIdx.x) % kSideVectors, down = int(threadIdx.x) / kSideVectors;
  const int64_t first_row = int64_t(blockIdx.y) * kSide, first_column = int64_t(blockIdx.x) * kSide;
  const int64_t row = first_row + down * kVector, column = first_column + across * kVector;
  constexpr int kParts = kVector / kWidth<T>;
  uint4 raw[kVector][kParts];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const bool inside = row + i < p.rows && column < p.inner;
    const auto* const from =
        reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) + (row + i) * p.inner + column);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      raw[i][part] = inside ? from[part] : make_uint4(0, 0, 0, 0);
    }
  }
  uint2 codes[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    float values[kVector];
    load(reinterpret_cast<const T*>(raw[i]), values);
    codes[i] = codes_of<kFormat>(values, divided);
    if (p.codes != nullptr && row + i < p.rows && column < p.inner) {
      *reinterpret_cast<uint2*>(static_cast<uint8_t*>(p.codes) + (row + i) * p.inner + column) =
          codes[i];
    }
  }
  if (p.turned == nullptr) return;
  write_turned(codes, {.rows = p.rows, .inner = p.inner, .turned = p.turned, .stride = p.stride});
}

// Codes that are made already, a vector of a row a load.
__global__ void __launch_bounds__(kThreads) turned_kernel(Fp8Turn p) {
  const int across = int(threadIdx.x) % kSideVectors, down = int(threadIdx.x) / kSideVectors;
  const int64_t row = int64_t(blockIdx.y) * kSide + down * kVector,
                column = int64_t(blockIdx.x) * kSide + across * kVector;
  uint2 codes[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const bool inside = row + i < p.rows && column < p.inner;
    const auto* const from = static_cast<const uint8_t*>(p.codes) + (row + i) * p.inner + column;
    codes[i] = inside ? *reinterpret_cast<const uint2*>(from) : make_uint2(0, 0);
  }
  write_turned(codes, p);
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
      matrix_largest_kernel<T><<<grid, kThreads, 0, stream>>>(x, vectors, largest);
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

void fp8_layouts(Type type, const Fp8LayoutsCast& p, cudaStream_t stream) {
  const dim3 grid(blocks(p.inner, kSide), blocks(p.rows, kSide));
  with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (p.format == Fp8Format::kE4m3) {
      layouts_kernel<T, __NV_E4M3><<<grid, kThreads, 0, stream>>>(p);
    } else {
      layouts_kernel<T, __NV_E5M2><<<grid, kThreads, 0, stream>>>(p);
    }
  });
}

void fp8_turned(const Fp8Turn& p, cudaStream_t stream) {
  const dim3 grid(blocks(p.inner, kSide), blocks(p.rows, kSide));
  turned_kernel<<<grid, kThreads, 0, stream>>>(p);
}

}  // namespace tessera::ops::cuda
