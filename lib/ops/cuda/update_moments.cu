// SPDX-License-Identifier: MIT
// AdamW with moments in bf16 and in 8 bits.
#include <type_traits>

#include "lib/ops/cuda/adamw.cuh"
#include "lib/ops/cuda/dispatch.cuh"
#include "lib/ops/moment_map.h"

namespace tessera::ops::cuda {
namespace {

constexpr int kEach = 8;  // elements per thread: a warp covers a block of moments
constexpr int kThreads = kAdamWChunk / kEach;
static_assert(32 * kEach == kMomentBlock);

__constant__ MomentMap maps[2] = {kSignedMap, kUnsignedMap};

template <typename T>
__device__ __forceinline__ void load8(const T* data, float (&out)[8]) {
  const uint4* raw = reinterpret_cast<const uint4*>(data);
  if constexpr (sizeof(T) == 2) {
    unpack<T>(raw[0], out);
  } else {
    float half[4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      unpack<T>(raw[h], half);
#pragma unroll
      for (int j = 0; j < 4; ++j) out[4 * h + j] = half[j];
    }
  }
}

template <typename T>
__device__ __forceinline__ void store8(T* data, const float (&in)[8]) {
  uint4* raw = reinterpret_cast<uint4*>(data);
  if constexpr (sizeof(T) == 2) {
    raw[0] = pack<T>(in);
  } else {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      raw[h] = pack<T>({in[4 * h], in[4 * h + 1], in[4 * h + 2], in[4 * h + 3]});
    }
  }
}

// Elements [first, first + valid) of an array; the others read as zeros. whole: all are valid and
// the address is a multiple of 16.
template <typename T>
__device__ __forceinline__ void read(const T* data, int64_t first, int valid, bool whole,
                                     float (&out)[kEach]) {
  if (whole) return load8(data + first, out);
#pragma unroll
  for (int j = 0; j < kEach; ++j) out[j] = j < valid ? to_float(data[first + j]) : 0.0F;
}

template <typename T>
__device__ __forceinline__ void write(T* data, int64_t first, int valid, bool whole,
                                      const float (&in)[kEach]) {
  if (whole) return store8(data + first, in);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (j < valid) data[first + j] = from_float<T>(in[j]);
  }
}

// As join(), for the valid elements only.
__device__ __forceinline__ void join_valid(const int16_t* data, int64_t first, int valid,
                                           bool whole, float (&values)[kEach]) {
  if (whole) return join(data + first, values);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (j < valid) values[j] = joined(values[j], data[first + j]);
  }
}
__device__ __forceinline__ void write_remainders(int16_t* data, int64_t first, int valid,
                                                 bool whole, const float (&values)[kEach]) {
  if (whole) return store_remainders(data + first, values);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (j < valid) data[first + j] = remainder_of(values[j]);
  }
}

// A bf16 value in fp32; see [Note: dithered second moments].
__device__ __forceinline__ float dithered(float value, uint32_t dither) {
  return isnan(value) ? value : __uint_as_float((__float_as_uint(value) + dither) & 0xFFFF0000U);
}

struct Bf16Moment {
  struct Shared {};
  __device__ static void prepare(Shared&) {}

  Bfloat16* data;
  const bool is_square;
  __device__ Bf16Moment(const Shared&, void* moment, float*, int which)
      : data(static_cast<Bfloat16*>(moment)), is_square(which == 1) {}
  __device__ void load(int64_t first, int valid, bool whole, float (&out)[kEach]) {
    read(data, first, valid, whole, out);
  }
  __device__ void store(int64_t first, int valid, bool whole, uint32_t dither,
                        const float (&in)[kEach]) {
    if (!is_square) return write(data, first, valid, whole, in);
    float rounded[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) rounded[j] = dithered(in[j], dither);
    write(data, first, valid, whole, rounded);
  }
};

// The map is in shared memory, since threads read different entries at once.
struct CodedMoment {
  struct Shared {
    MomentMap maps[2];
  };
  __device__ static void prepare(Shared& shared) {
    constexpr int kWords = sizeof(Shared) / sizeof(uint32_t);
    const auto* from = reinterpret_cast<const uint32_t*>(maps);
    auto* to = reinterpret_cast<uint32_t*>(&shared);
    for (int i = threadIdx.x; i < kWords; i += kThreads) to[i] = from[i];
  }

  const MomentMap& map;
  uint8_t* codes;
  float* largest;
  __device__ CodedMoment(const Shared& shared, void* moment, float* of_blocks, int which)
      : map(shared.maps[which]), codes(static_cast<uint8_t*>(moment)), largest(of_blocks) {}

  __device__ void load(int64_t first, int valid, bool whole, float (&out)[kEach]) {
    const float scale = valid > 0 ? largest[first / kMomentBlock] : 0.0F;
    uint64_t raw = 0;
    if (whole) {
      raw = *reinterpret_cast<const uint64_t*>(codes + first);
    } else {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        if (j < valid) raw |= uint64_t(codes[first + j]) << (8 * j);
      }
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      out[j] = __fmul_rn(map.value_of[uint8_t(raw >> (8 * j))], scale);
    }
  }
  // Call with all threads of the warp, also those without valid elements.
  __device__ void store(int64_t first, int valid, bool whole, uint32_t, const float (&in)[kEach]) {
    float most = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (j < valid) most = fmaxf(most, fabsf(in[j]));
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
      most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, offset));
    }
    uint64_t raw = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const float value = most == 0 ? 0.0F : __fdiv_rn(in[j], most);
      int place = 0;  // number of midpoints below
#pragma unroll
      for (int half = kMomentCodes / 2; half > 0; half /= 2) {
        place += map.middle[place + half - 1] < value ? half : 0;
      }
      place = max(place, in[j] > 0 ? 1 : 0);
      raw |= uint64_t(uint8_t(place - map.zero)) << (8 * j);
    }
    if (valid > 0 && first % kMomentBlock == 0) largest[first / kMomentBlock] = most;
    if (whole) {
      *reinterpret_cast<uint64_t*>(codes + first) = raw;
      return;
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (j < valid) codes[first + j] = uint8_t(raw >> (8 * j));
    }
  }
};

template <typename G, typename L, bool kSplit, typename Moment>
__global__ void __launch_bounds__(kThreads)
    adamw_moments_kernel(const __grid_constant__ AdamWMomentsTable table, AdamWConstants c) {
  __shared__ Step shared;
  __shared__ typename Moment::Shared maps_here;
  if (c.skip && *c.skip != 0) return;
  int index = 0;
  while (int(blockIdx.x) >= table.first_chunk[index + 1]) ++index;
  const AdamWMomentsEntry& entry = table.entries[index];
  const int64_t first =
      int64_t(blockIdx.x - table.first_chunk[index]) * kAdamWChunk + threadIdx.x * kEach;
  const int64_t left = entry.count - first;
  const int valid = left >= kEach ? kEach : left > 0 ? int(left) : 0;
  const G* gradient = static_cast<const G*>(entry.gradient);
  L* low = static_cast<L*>(entry.low_precision);
  const auto address = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
  const bool aligned =
      ((address(entry.parameter) | address(entry.exp_avg) | address(entry.exp_avg_sq) |
        address(gradient) | address(low) | address(entry.remainder)) &
       15) == 0;
  const bool whole = aligned && valid == kEach;
  float g[kEach], p[kEach], m[kEach], v[kEach];
  read(gradient, first, valid, whole, g);
  if constexpr (kSplit) {
    read(low, first, valid, whole, p);
    join_valid(entry.remainder, first, valid, whole, p);
  } else {
    read(entry.parameter, first, valid, whole, p);
  }
  read_step(c, entry, shared);
  Moment::prepare(maps_here);
  __syncthreads();
  Moment exp_avg(maps_here, entry.exp_avg, entry.exp_avg_largest, 0);
  Moment exp_avg_sq(maps_here, entry.exp_avg_sq, entry.exp_avg_sq_largest, 1);
  exp_avg.load(first, valid, whole, m);
  exp_avg_sq.load(first, valid, whole, v);
  const Step step = shared;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    update(c.epsilon, step, g[j], p[j], m[j], v[j]);
    if constexpr (std::is_same_v<L, Bfloat16>) p[j] = settled(p[j]);
  }
  if constexpr (kSplit) {
    write_remainders(entry.remainder, first, valid, whole, p);
  } else {
    write(entry.parameter, first, valid, whole, p);
  }
  if (low) write(low, first, valid, whole, p);
  exp_avg.store(first, valid, whole, step.dither, m);
  exp_avg_sq.store(first, valid, whole, step.dither, v);
}

template <typename Moment>
void launch(Type gradient_type, Type low_type, const AdamWMomentsTable& table,
            const AdamWConstants& constants, cudaStream_t stream) {
  const unsigned blocks = unsigned(table.first_chunk[table.count]);
  with_type(gradient_type, [&](auto gradient_tag) {
    with_type(low_type, [&](auto low_tag) {
      using G = typename decltype(gradient_tag)::type;
      using L = typename decltype(low_tag)::type;
      auto* kernel = adamw_moments_kernel<G, L, /*kSplit=*/false, Moment>;
      if constexpr (std::is_same_v<L, Bfloat16>) {
        if (table.entries[0].remainder) {
          kernel = adamw_moments_kernel<G, L, /*kSplit=*/true, Moment>;
        }
      }
      kernel<<<blocks, kThreads, 0, stream>>>(table, constants);
    });
  });
}

}  // namespace

void adamw_bf16_moments(Type gradient_type, Type low_type, const AdamWMomentsTable& table,
                        const AdamWConstants& constants, cudaStream_t stream) {
  launch<Bf16Moment>(gradient_type, low_type, table, constants, stream);
}

void adamw_8bit_moments(Type gradient_type, Type low_type, const AdamWMomentsTable& table,
                        const AdamWConstants& constants, cudaStream_t stream) {
  launch<CodedMoment>(gradient_type, low_type, table, constants, stream);
}

}  // namespace tessera::ops::cuda
