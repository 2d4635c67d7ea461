// SPDX-License-Identifier: MIT
// RMS norm of query and key heads. A group of lanes holds one head of one token, eight elements per
// lane.
#include "lib/ops/cuda/dispatch.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <int kLanes>
__device__ __forceinline__ float group_sum(float value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, offset);
  }
  return value;
}

// Index of a head among those of all tokens, and whether the lane holds a part of it.
template <int kLanes>
struct Item {
  int64_t number, token;
  int head, lane;
  bool active;

  __device__ __forceinline__ Item(const HeadNorm& p, int64_t at)
      : number(at),
        token(at / p.heads),
        head(int(at % p.heads)),
        lane(int(threadIdx.x) % kLanes),
        active(token < p.tokens && lane < p.d / 8) {}
  template <typename T>
  __device__ __forceinline__ uint4* in_qkv(const HeadNorm& p) const {
    return reinterpret_cast<uint4*>(static_cast<T*>(p.qkv) + token * p.token_stride +
                                    int64_t(head) * p.d) +
           lane;
  }
  __device__ __forceinline__ int64_t vector(const HeadNorm& p) const {
    return number * (p.d / 8) + lane;
  }
  template <typename T>
  __device__ __forceinline__ void load_weight(const HeadNorm& p, float (&out)[8]) const {
    const void* weight = head < p.query_heads ? p.query_weight : p.key_weight;
    unpack<T>(static_cast<const uint4*>(weight)[lane], out);
  }
};

template <typename T, int kLanes>
__global__ void __launch_bounds__(kThreads) forward_kernel(HeadNorm p) {
  const Item<kLanes> item(p, (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kLanes);
  float x[8] = {}, sum = 0;
  uint4 raw{};
  if (item.active) raw = *item.template in_qkv<T>(p);
  unpack<T>(raw, x);
#pragma unroll
  for (int j = 0; j < 8; ++j) sum += x[j] * x[j];
  const float rstd = rsqrtf(group_sum<kLanes>(sum) / float(p.d) + p.epsilon);
  if (!item.active) return;
  float weight[8];
  item.template load_weight<T>(p, weight);
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] *= rstd * weight[j];
  static_cast<uint4*>(p.x)[item.vector(p)] = raw;
  *item.template in_qkv<T>(p) = pack<T>(x);
  if (item.lane == 0) p.rstd[item.number] = rstd;
}

template <typename T, int kLanes>
__global__ void __launch_bounds__(kThreads) backward_kernel(HeadNorm p) {
  constexpr int kGroups = kThreads / kLanes;
  __shared__ float sums[kGroups][2][8 * kLanes];
  float of_queries[8] = {}, of_keys[8] = {};
  const int group = int(threadIdx.x) / kLanes, lane = int(threadIdx.x) % kLanes;
  const int64_t items = p.tokens * p.heads, stride = int64_t(gridDim.x) * kGroups;
  // Uniform trip count for all lanes of a warp.
  for (int64_t first = int64_t(blockIdx.x) * kGroups; first < items; first += stride) {
    const Item<kLanes> item(p, first + group);
    float dy[8] = {}, x[8] = {}, weight[8] = {}, sum = 0, rstd = 0;
    if (item.active) {
      unpack<T>(*item.template in_qkv<T>(p), dy);
      unpack<T>(static_cast<const uint4*>(p.x)[item.vector(p)], x);
      item.template load_weight<T>(p, weight);
      rstd = p.rstd[item.number];
    }
    float* const columns = item.head < p.query_heads ? of_queries : of_keys;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      x[j] *= rstd;
      columns[j] += dy[j] * x[j];
      dy[j] *= weight[j];
      sum += dy[j] * x[j];
    }
    const float mean = group_sum<kLanes>(sum) / float(p.d);
    if (item.active) {
#pragma unroll
      for (int j = 0; j < 8; ++j) dy[j] = rstd * (dy[j] - x[j] * mean);
      *item.template in_qkv<T>(p) = pack<T>(dy);
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    sums[group][0][8 * lane + j] = of_queries[j];
    sums[group][1][8 * lane + j] = of_keys[j];
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < 2 * p.d; i += kThreads) {
    float sum = 0;
    for (int g = 0; g < kGroups; ++g) sum += sums[g][i / p.d][i % p.d];
    p.partial[int64_t(blockIdx.x) * 2 * p.d + i] = sum;
  }
}

template <typename Function>
void with_lanes(int d, Function&& function) {
  if (d <= 64) {
    function(std::integral_constant<int, 8>{});
  } else if (d <= 128) {
    function(std::integral_constant<int, 16>{});
  } else {
    function(std::integral_constant<int, 32>{});
  }
}

}  // namespace

void head_norm(Type type, const HeadNorm& p, cudaStream_t stream) {
  with_16_bit_type(type, [&](auto tag) {
    with_lanes(p.d, [&](auto lanes) {
      constexpr int kLanes = decltype(lanes)::value, kGroups = kThreads / kLanes;
      const auto blocks = unsigned((p.tokens * p.heads + kGroups - 1) / kGroups);
      forward_kernel<typename decltype(tag)::type, kLanes><<<blocks, kThreads, 0, stream>>>(p);
    });
  });
}

void head_norm_backward(Type type, const HeadNorm& p, cudaStream_t stream) {
  with_16_bit_type(type, [&](auto tag) {
    with_lanes(p.d, [&](auto lanes) {
      constexpr int kLanes = decltype(lanes)::value;
      backward_kernel<typename decltype(tag)::type, kLanes>
          <<<kHeadNormParts, kThreads, 0, stream>>>(p);
    });
  });
}

}  // namespace tessera::ops::cuda
