// SPDX-License-Identifier: MIT
// One block per row and query head. A group of lanes holds one key or value, 8 elements per lane.
// It visits every kGroups-th token with an online softmax of its own (Milakov, Gimelshein 2018). At
// the end the groups' partial sums are merged.
#include "lib/ops/cuda/dispatch.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kAhead = 4;           // tokens a group loads ahead
constexpr float kNothing = -1e30F;  // maximum of an empty set of scores

// Partial softmax-weighted sum; weights are relative to exp(maximum).
struct Part {
  float maximum = kNothing, sum = 0, value[8] = {};

  __device__ __forceinline__ void scale_to(float other) {
    const float both = fmaxf(maximum, other), factor = __expf(maximum - both);
    maximum = both, sum *= factor;
#pragma unroll
    for (int i = 0; i < 8; ++i) value[i] *= factor;
  }
};

template <typename T, int kLanes>  // lanes per group: d / 8, rounded up to a power of two
__global__ void __launch_bounds__(32 * kWarps) attention_kernel(CachedAttention a) {
  constexpr int kGroups = 32 * kWarps / kLanes;
  __shared__ float maxima[kWarps], sums[kWarps], values[kWarps][8 * kLanes];
  const int head = blockIdx.x, row = blockIdx.y, shared_by = a.heads / a.key_heads;
  const int key_head = head / shared_by;
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes, warp = threadIdx.x / 32;
  const bool active = lane < a.d / 8;
  const int64_t length = a.lengths[row], token = int64_t(a.key_heads) * a.d;
  const int64_t first = row * a.capacity * token + key_head * a.d + 8 * lane;
  const int64_t fresh = row * a.key_row + key_head * a.key_head + 8 * lane;
  const T* keys = static_cast<const T*>(a.keys) + first;
  const T* cached_values = static_cast<const T*>(a.values) + first;
  const auto load = [&](const T* kept, const void* given, int64_t at) {
    const T* from = at == length ? static_cast<const T*>(given) + fresh : kept + at * token;
    return active && at <= length ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
  };
  if (group == 0 && active && head % shared_by == 0) {
    const auto keep = [&](void* kept, const void* given) {
      *reinterpret_cast<uint4*>(static_cast<T*>(kept) + first + length * token) =
          *reinterpret_cast<const uint4*>(static_cast<const T*>(given) + fresh);
    };
    keep(a.keys, a.k);
    keep(a.values, a.v);
  }

  float query[8] = {};
  if (active) {
    const T* from = static_cast<const T*>(a.q) + row * a.q_row + head * a.q_head + 8 * lane;
    unpack<T>(*reinterpret_cast<const uint4*>(from), query);
  }
  const float slope = a.slopes ? a.slopes[head] : 0.0F;
  Part part;
  const int64_t first_key = a.window > 0 && length >= a.window ? length - a.window + 1 : 0;
  for (int64_t begin = first_key; begin <= length;
       begin += kAhead * kGroups) {  // uniform for all lanes
    uint4 raw_key[kAhead], raw_value[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      raw_key[i] = load(keys, a.k, begin + group + i * kGroups);
      raw_value[i] = load(cached_values, a.v, begin + group + i * kGroups);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t at = begin + group + i * kGroups;
      float key[8], value[8], score = 0;
      unpack<T>(raw_key[i], key);
#pragma unroll
      for (int j = 0; j < 8; ++j) score += query[j] * key[j];
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2) {
        score += __shfl_xor_sync(0xffffffffU, score, offset);
      }
      score = at <= length ? score * a.scale + slope * float(at - length) : 2 * kNothing;
      part.scale_to(score);
      const float weight = __expf(score - part.maximum);
      part.sum += weight;
      unpack<T>(raw_value[i], value);
#pragma unroll
      for (int j = 0; j < 8; ++j) part.value[j] += weight * value[j];
    }
  }

#pragma unroll
  for (int offset = kLanes; offset < 32; offset *= 2) {
    part.scale_to(__shfl_xor_sync(0xffffffffU, part.maximum, offset));
    part.sum += __shfl_xor_sync(0xffffffffU, part.sum, offset);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      part.value[j] += __shfl_xor_sync(0xffffffffU, part.value[j], offset);
    }
  }
  if (threadIdx.x % 32 < kLanes) {
    maxima[warp] = part.maximum, sums[warp] = part.sum;
#pragma unroll
    for (int j = 0; j < 8; ++j) values[warp][8 * lane + j] = part.value[j];
  }
  __syncthreads();
  float maximum = kNothing, sum = 0;
  for (int w = 0; w < kWarps; ++w) maximum = fmaxf(maximum, maxima[w]);
  for (int w = 0; w < kWarps; ++w) sum += sums[w] * __expf(maxima[w] - maximum);
  T* output = static_cast<T*>(a.output) + (int64_t(row) * a.heads + head) * a.d;
  for (int i = threadIdx.x; i < a.d; i += 32 * kWarps) {
    float value = 0;
    for (int w = 0; w < kWarps; ++w) value += values[w][i] * __expf(maxima[w] - maximum);
    output[i] = from_float<T>(value / sum);
  }
}

// One block per token.
__global__ void __launch_bounds__(32 * kWarps) keep_kernel(KeptRows a) {
  const auto token = int32_t(blockIdx.x);
  int row = 0, behind = a.rows;  // the token's row is in [row, behind)
  while (behind - row > 1) {
    const int middle = (row + behind) / 2;
    (a.offsets[middle] <= token ? row : behind) = middle;
  }
  if (row >= a.batch) return;
  const int pieces = a.heads * a.head_pieces;
  const int64_t place = (row * a.capacity + token - a.offsets[row]) * pieces;
  for (int i = threadIdx.x; i < pieces; i += 32 * kWarps) {
    const int64_t from = token * a.token + i / a.head_pieces * a.head + i % a.head_pieces;
    static_cast<uint4*>(a.keys)[place + i] = static_cast<const uint4*>(a.k)[from];
    static_cast<uint4*>(a.values)[place + i] = static_cast<const uint4*>(a.v)[from];
  }
}

}  // namespace

void keep_in_cache(const KeptRows& a, cudaStream_t stream) {
  keep_kernel<<<unsigned(a.tokens), 32 * kWarps, 0, stream>>>(a);
}

void attention_to_cache(Type type, const CachedAttention& a, cudaStream_t stream) {
  const dim3 grid(a.heads, a.batch);
  with_16_bit_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (a.d <= 64) {
      attention_kernel<T, 8><<<grid, 32 * kWarps, 0, stream>>>(a);
    } else if (a.d <= 128) {
      attention_kernel<T, 16><<<grid, 32 * kWarps, 0, stream>>>(a);
    } else {
      attention_kernel<T, 32><<<grid, 32 * kWarps, 0, stream>>>(a);
    }
  });
}

}  // namespace tessera::ops::cuda
