// SPDX-License-Identifier: MIT
#pragma once
// Products of 16-bit matrices with 64 rows by four warps, 16 rows of the result each. Left factors
// and results are in registers, laid out for m16n8k16 (PTX manual).
#include <cstdint>
#include <type_traits>

#include "lib/ops/cuda/cluster.cuh"
#include "lib/ops/cuda/vector.cuh"

namespace tessera::ops::cuda {

constexpr int kTile = 64, kThreads = 128;

// 64 rows of 16 or 64 elements in shared memory. 16-byte chunks are swizzled inside a row, so that
// 8 rows' chunks of one column lie in different banks.
template <int kColumns>
struct alignas(1024) Panel {
  static constexpr int kChunks = kColumns / 8;
  uint4 data[kTile * kChunks];

  static __device__ __forceinline__ int place(int row, int chunk) {
    return row * kChunks + (chunk ^ (row * kChunks / 8 % kChunks));
  }
  __device__ __forceinline__ const void* at(int row, int chunk) const {
    return data + place(row, chunk);
  }
  __device__ __forceinline__ void* at(int row, int chunk) { return data + place(row, chunk); }
};

// 64 rows of one head: panels of 64 columns and the remainder.
template <int kHead>
struct Tile {
  Panel<64> first;
  Panel<kHead - 64> rest;
};
template <>
struct Tile<64> {
  Panel<64> first;
};

// Calls function(panel, its first column) for each panel.
template <int kHead, typename Function>
__device__ __forceinline__ void each_panel(Tile<kHead>& tile, Function&& function) {
  function(tile.first, 0);
  if constexpr (kHead > 64) function(tile.rest, 64);
}

// 16 rows of 64 columns as the left factor.
struct Operand {
  uint32_t x[4][4];  // per 16 columns
};

// 16 rows of kColumns in fp32. A thread holds two adjacent columns of row lane / 4 and of the row 8
// below.
template <int kColumns>
struct Accumulator {
  float x[kColumns / 8][4];  // per 8 columns

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j][i] = 0;
    }
  }
};
using Scores = Accumulator<kTile>;

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
__device__ __forceinline__ Operand to_operand(const Scores& c) {
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

// Products are begun, committed in groups and waited for. On compute capability 9.0a they run
// asynchronously (wgmma, which reads its right factor from shared memory); elsewhere they finish
// within the call.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr bool kProductsRunBeside = true;

// Makes the threads' writes to shared memory visible to products after the next barrier.
__device__ __forceinline__ void publish_tiles() { fence_bulk_copies(); }
// Call before products whose accumulators or left factors were computed in registers.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits for all groups but the last kGroups.
template <int kGroups>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
// Keeps the compiler from using c before this call.
template <int kColumns>
__device__ __forceinline__ void take(Accumulator<kColumns>& c) {
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c.x[j][i])::"memory");
  }
}

// Descriptor of a panel from its row and column on: swizzle mode, and the bytes from 8 rows to the
// next 8.
template <int kColumns>
__device__ __forceinline__ uint64_t descriptor(const Panel<kColumns>& panel, int row, int column) {
  constexpr uint64_t kExchange = kColumns == 64 ? 1 : 3;  // swizzle of 128 or of 32 bytes
  const uint32_t address = shared_address(panel.data + row * Panel<kColumns>::kChunks) + 2 * column;
  return uint64_t(address >> 4 & 0x3fff) | uint64_t(1) << 16 | uint64_t(16 * kColumns >> 4) << 32 |
         kExchange << 62;
}

#define TESSERA_GROUP(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define TESSERA_2_GROUPS TESSERA_GROUP(0), TESSERA_GROUP(1)
#define TESSERA_8_GROUPS                                                                    \
  TESSERA_2_GROUPS, TESSERA_GROUP(2), TESSERA_GROUP(3), TESSERA_GROUP(4), TESSERA_GROUP(5), \
      TESSERA_GROUP(6), TESSERA_GROUP(7)
#define TESSERA_2_NAMES "{%0, %1, %2, %3, %4, %5, %6, %7}, "
#define TESSERA_8_NAMES                                                                         \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define TESSERA_PRODUCT(columns, type) \
  "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " "
#define TESSERA_FROM_REGISTERS(groups, columns, type, factors)                                 \
  asm volatile(TESSERA_PRODUCT(columns, type) TESSERA_##groups##_NAMES factors ", 1, 1, 1, 1;" \
               : TESSERA_##groups##_GROUPS                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// c = (add ? c : 0) + 16 columns of a times 16 of b's, transposed.
template <typename T>
__device__ __forceinline__ void product(float (*c)[4], uint64_t a, uint64_t b, int add) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %34, 0;\n" TESSERA_PRODUCT("64", "bf16")
                     TESSERA_8_NAMES "%32, %33, p, 1, 1, 0, 0;\n}"
                 : TESSERA_8_GROUPS
                 : "l"(a), "l"(b), "r"(add));
  } else {
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %34, 0;\n" TESSERA_PRODUCT("64", "f16")
                     TESSERA_8_NAMES "%32, %33, p, 1, 1, 0, 0;\n}"
                 : TESSERA_8_GROUPS
                 : "l"(a), "l"(b), "r"(add));
  }
}
// c += 16 columns of a times 16 rows of a panel of kColumns.
template <typename T, int kColumns>
__device__ __forceinline__ void product(float (*c)[4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(kColumns == 64 || kColumns == 16);
  constexpr bool kBfloat16 = std::is_same_v<T, Bfloat16>;
  if constexpr (kColumns == 64 && kBfloat16) {
    TESSERA_FROM_REGISTERS(8, "64", "bf16", "{%32, %33, %34, %35}, %36");
  } else if constexpr (kColumns == 64) {
    TESSERA_FROM_REGISTERS(8, "64", "f16", "{%32, %33, %34, %35}, %36");
  } else if constexpr (kBfloat16) {
    TESSERA_FROM_REGISTERS(2, "16", "bf16", "{%8, %9, %10, %11}, %12");
  } else {
    TESSERA_FROM_REGISTERS(2, "16", "f16", "{%8, %9, %10, %11}, %12");
  }
}
#undef TESSERA_FROM_REGISTERS
#undef TESSERA_PRODUCT
#undef TESSERA_8_NAMES
#undef TESSERA_2_NAMES
#undef TESSERA_8_GROUPS
#undef TESSERA_2_GROUPS
#undef TESSERA_GROUP

// c (+)= a b^T for one panel; `add`: keep the previous c.
template <typename T, int kColumns>
__device__ __forceinline__ void add_transposed(Scores& c, const Panel<kColumns>& a,
                                               const Panel<kColumns>& b, bool add) {
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k) {
    product<T>(c.x, descriptor(a, 0, 16 * k), descriptor(b, 0, 16 * k), add || k > 0);
  }
}

// c += a b for a panel's columns.
template <typename T, int kColumns>
__device__ __forceinline__ void add_product(float (*c)[4], const Operand& a,
                                            const Panel<kColumns>& b) {
#pragma unroll
  for (int k = 0; k < 4; ++k) product<T, kColumns>(c, a.x[k], descriptor(b, 16 * k, 0));
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

__device__ __forceinline__ void publish_tiles() {}
__device__ __forceinline__ void begin_products() {}
__device__ __forceinline__ void commit_products() {}
template <int kGroups>
__device__ __forceinline__ void wait_for_products() {}
template <int kColumns>
__device__ __forceinline__ void take(Accumulator<kColumns>&) {}

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

template <typename T, int kColumns>
__device__ __forceinline__ void add_transposed(Scores& c, const Panel<kColumns>& a,
                                               const Panel<kColumns>& b, bool add) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t left[kColumns / 16][4];
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k) {
    load_matrices(left[k], a.at(16 * warp + lane % 16, 2 * k + lane / 16));
  }
  if (!add) c.clear();
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
      uint32_t piece[4];
      load_matrices(piece, b.at(16 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
      product<T>(c.x[2 * n], left[k], piece[0], piece[1]);
      product<T>(c.x[2 * n + 1], left[k], piece[2], piece[3]);
    }
  }
}

template <typename T, int kColumns>
__device__ __forceinline__ void add_product(float (*c)[4], const Operand& a,
                                            const Panel<kColumns>& b) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
      uint32_t piece[4];
      load_transposed(piece, b.at(16 * k + lane % 16, 2 * n + lane / 16));
      product<T>(c[2 * n], a.x[k], piece[0], piece[1]);
      product<T>(c[2 * n + 1], a.x[k], piece[2], piece[3]);
    }
  }
}

#endif

// c = a b^T.
template <typename T, int kHead>
__device__ __forceinline__ void multiply_transposed(Scores& c, const Tile<kHead>& a,
                                                    const Tile<kHead>& b) {
  add_transposed<T>(c, a.first, b.first, false);
  if constexpr (kHead > 64) add_transposed<T>(c, a.rest, b.rest, true);
}

// c += a b.
template <typename T, int kHead>
__device__ __forceinline__ void multiply(Accumulator<kHead>& c, const Operand& a,
                                         const Tile<kHead>& b) {
  add_product<T>(c.x, a, b.first);
  if constexpr (kHead > 64) add_product<T>(c.x + 8, a, b.rest);
}

template <typename T>
__device__ __forceinline__ float product_of_two(uint32_t a, uint32_t b) {
  const float2 x = unpack_two<T>(a), y = unpack_two<T>(b);
  return x.x * y.x + x.y * y.y;
}

template <typename T, int kColumns>
__device__ __forceinline__ float half_row_sum(const Panel<kColumns>& a, const Panel<kColumns>& b,
                                              int row, int half) {
  constexpr int kHalf = Panel<kColumns>::kChunks / 2;
  float sum = 0;
#pragma unroll
  for (int chunk = 0; chunk < kHalf; ++chunk) {
    const uint4 x = *static_cast<const uint4*>(a.at(row, kHalf * half + chunk));
    const uint4 y = *static_cast<const uint4*>(b.at(row, kHalf * half + chunk));
    sum += product_of_two<T>(x.x, y.x) + product_of_two<T>(x.y, y.y) + product_of_two<T>(x.z, y.z) +
           product_of_two<T>(x.w, y.w);
  }
  return sum;
}

// Inner product of a row of two tiles; two neighbouring threads compute a half each.
template <typename T, int kHead>
__device__ __forceinline__ float half_row_product(const Tile<kHead>& a, const Tile<kHead>& b,
                                                  int row, int half) {
  float sum = half_row_sum<T>(a.first, b.first, row, half);
  if constexpr (kHead > 64) sum += half_row_sum<T>(a.rest, b.rest, row, half);
  return sum + __shfl_xor_sync(0xffffffffU, sum, 1);
}

}  // namespace tessera::ops::cuda
