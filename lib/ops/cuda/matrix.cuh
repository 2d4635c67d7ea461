// SPDX-License-Identifier: MIT
#pragma once
// Products of 16-bit matrices in tiles of 64 x 64 by four warps, each of which has 16 rows of the
// result. Left factors and results lie in registers as the PTX manual has them for m16n8k16.
#include <cstdint>
#include <type_traits>

#include "lib/ops/cuda/cluster.cuh"
#include "lib/ops/cuda/vector.cuh"

namespace tessera::ops::cuda {

constexpr int kTile = 64, kThreads = 128;

// 64 rows of 64 elements in shared memory. Chunks of 16 bytes are exchanged inside a row, so that 8
// rows' chunks of one column lie in different banks.
struct alignas(1024) Tile {
  uint4 data[kTile * 8];

  __device__ __forceinline__ const void* at(int row, int chunk) const {
    return data + row * 8 + (chunk ^ (row & 7));
  }
  __device__ __forceinline__ void* at(int row, int chunk) {
    return data + row * 8 + (chunk ^ (row & 7));
  }
};

// 16 rows of 64 columns, as the left factor.
struct Operand {
  uint32_t x[4][4];  // each of 16 columns
};

// 16 rows of 64 columns in fp32; a thread has two neighbours of the rows lane / 4 and 8 behind it.
struct Accumulator {
  float x[8][4];  // each of 8 columns

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j][i] = 0;
    }
  }
};

template <typename T>
__device__ __forceinline__ uint32_t pack_two(float low, float high) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

template <typename T>
__device__ __forceinline__ float2 unpack_two(uint32_t pair) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U)};
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  }
}

__device__ __forceinline__ float power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

template <typename T>
__device__ __forceinline__ Operand to_operand(const Accumulator& c) {
  Operand result;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    result.x[k][0] = pack_two<T>(c.x[2 * k][0], c.x[2 * k][1]);
    result.x[k][1] = pack_two<T>(c.x[2 * k][2], c.x[2 * k][3]);
    result.x[k][2] = pack_two<T>(c.x[2 * k + 1][0], c.x[2 * k + 1][1]);
    result.x[k][3] = pack_two<T>(c.x[2 * k + 1][2], c.x[2 * k + 1][3]);
  }
  return result;
}

// Products are begun, committed in groups and waited for: on compute capability 9.0a the four
// warps' instructions run beside what follows them (wgmma, which reads its right factor from shared
// memory), elsewhere each is over when its call is.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr bool kProductsRunBeside = true;

// What threads wrote to shared memory is seen by products after the next barrier.
__device__ __forceinline__ void publish_tiles() { fence_bulk_copies(); }
// Before products whose accumulators or left factors were computed.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until all groups but the last kGroups are over.
template <int kGroups>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
// Nothing of c is used before.
__device__ __forceinline__ void take(Accumulator& c) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c.x[j][i])::"memory");
  }
}

// A tile from its row and column on, as the instruction takes it: chunks exchanged over 128 bytes,
// 1024 bytes from 8 rows to the next.
__device__ __forceinline__ uint64_t descriptor(const Tile& tile, int row, int column) {
  const uint32_t address = shared_address(tile.data + row * 8) + 2 * column;
  return uint64_t(address >> 4 & 0x3fff) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 |
         uint64_t(1) << 62;
}

#define TESSERA_ACCUMULATOR(c)                                                             \
  "+f"(c.x[0][0]), "+f"(c.x[0][1]), "+f"(c.x[0][2]), "+f"(c.x[0][3]), "+f"(c.x[1][0]),     \
      "+f"(c.x[1][1]), "+f"(c.x[1][2]), "+f"(c.x[1][3]), "+f"(c.x[2][0]), "+f"(c.x[2][1]), \
      "+f"(c.x[2][2]), "+f"(c.x[2][3]), "+f"(c.x[3][0]), "+f"(c.x[3][1]), "+f"(c.x[3][2]), \
      "+f"(c.x[3][3]), "+f"(c.x[4][0]), "+f"(c.x[4][1]), "+f"(c.x[4][2]), "+f"(c.x[4][3]), \
      "+f"(c.x[5][0]), "+f"(c.x[5][1]), "+f"(c.x[5][2]), "+f"(c.x[5][3]), "+f"(c.x[6][0]), \
      "+f"(c.x[6][1]), "+f"(c.x[6][2]), "+f"(c.x[6][3]), "+f"(c.x[7][0]), "+f"(c.x[7][1]), \
      "+f"(c.x[7][2]), "+f"(c.x[7][3])
#define TESSERA_ACCUMULATOR_NAMES                                                               \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define TESSERA_PRODUCT(type) \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " TESSERA_ACCUMULATOR_NAMES ", "

// c = (add ? c : 0) + 16 columns of a times 16 of b's, transposed.
template <typename T>
__device__ __forceinline__ void product(Accumulator& c, uint64_t a, uint64_t b, int add) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %34, 0;\n" TESSERA_PRODUCT(
                     "bf16") "%32, %33, p, 1, 1, 0, 0;\n}"
                 : TESSERA_ACCUMULATOR(c)
                 : "l"(a), "l"(b), "r"(add));
  } else {
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %34, 0;\n" TESSERA_PRODUCT(
                     "f16") "%32, %33, p, 1, 1, 0, 0;\n}"
                 : TESSERA_ACCUMULATOR(c)
                 : "l"(a), "l"(b), "r"(add));
  }
}
// c += 16 columns of a times 16 rows of b's.
template <typename T>
__device__ __forceinline__ void product(Accumulator& c, const uint32_t (&a)[4], uint64_t b) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    asm volatile(TESSERA_PRODUCT("bf16") "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : TESSERA_ACCUMULATOR(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    asm volatile(TESSERA_PRODUCT("f16") "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : TESSERA_ACCUMULATOR(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}
#undef TESSERA_PRODUCT
#undef TESSERA_ACCUMULATOR_NAMES
#undef TESSERA_ACCUMULATOR

// c = a b^T.
template <typename T>
__device__ __forceinline__ void multiply_transposed(Accumulator& c, const Tile& a, const Tile& b) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    product<T>(c, descriptor(a, 0, 16 * k), descriptor(b, 0, 16 * k), k);
  }
}

// c += a b.
template <typename T>
__device__ __forceinline__ void multiply(Accumulator& c, const Operand& a, const Tile& b) {
#pragma unroll
  for (int k = 0; k < 4; ++k) product<T>(c, a.x[k], descriptor(b, 16 * k, 0));
}

#else

constexpr bool kProductsRunBeside = false;

__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row)));
}
__device__ __forceinline__ void load_transposed(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row)));
}

__device__ __forceinline__ Operand load_operand(const Tile& tile, int first_row) {
  const int lane = threadIdx.x % 32;
  Operand result;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    load_matrices(result.x[k], tile.at(first_row + lane % 16, 2 * k + lane / 16));
  }
  return result;
}

__device__ __forceinline__ void publish_tiles() {}
__device__ __forceinline__ void begin_products() {}
__device__ __forceinline__ void commit_products() {}
template <int kGroups>
__device__ __forceinline__ void wait_for_products() {}
__device__ __forceinline__ void take(Accumulator&) {}

template <typename T>
__device__ __forceinline__ void product(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

template <typename T>
__device__ __forceinline__ void multiply_transposed(Accumulator& c, const Tile& a, const Tile& b) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Operand left = load_operand(a, 16 * warp);
  c.clear();
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t piece[4];
      load_matrices(piece, b.at(16 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
      product<T>(c.x[2 * n], left.x[k], piece[0], piece[1]);
      product<T>(c.x[2 * n + 1], left.x[k], piece[2], piece[3]);
    }
  }
}

template <typename T>
__device__ __forceinline__ void multiply(Accumulator& c, const Operand& a, const Tile& b) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint32_t piece[4];
      load_transposed(piece, b.at(16 * k + lane % 16, 2 * n + lane / 16));
      product<T>(c.x[2 * n], a.x[k], piece[0], piece[1]);
      product<T>(c.x[2 * n + 1], a.x[k], piece[2], piece[3]);
    }
  }
}

#endif

template <typename T>
__device__ __forceinline__ float product_of_two(uint32_t a, uint32_t b) {
  const float2 x = unpack_two<T>(a), y = unpack_two<T>(b);
  return x.x * y.x + x.y * y.y;
}

// Inner product of a row of two tiles, of which two neighbouring threads have a half each.
template <typename T>
__device__ __forceinline__ float half_row_product(const Tile& a, const Tile& b, int row, int half) {
  float sum = 0;
#pragma unroll
  for (int chunk = 0; chunk < 4; ++chunk) {
    const uint4 x = *static_cast<const uint4*>(a.at(row, 4 * half + chunk));
    const uint4 y = *static_cast<const uint4*>(b.at(row, 4 * half + chunk));
    sum += product_of_two<T>(x.x, y.x) + product_of_two<T>(x.y, y.y) + product_of_two<T>(x.z, y.z) +
           product_of_two<T>(x.w, y.w);
  }
  return sum + __shfl_xor_sync(0xffffffffU, sum, 1);
}

}  // namespace tessera::ops::cuda
