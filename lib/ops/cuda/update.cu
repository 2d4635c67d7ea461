// SPDX-License-Identifier: MIT
// Whole-buffer kernels: AdamW over many ranges, sums of squares, and the embedding's gradient.
#include <algorithm>
#include <type_traits>

#include "lib/ops/cuda/adamw.cuh"
#include "lib/ops/cuda/dispatch.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kThreads * 4 == kAdamWChunk);

template <typename G, typename L, bool kSplit>
__global__ void __launch_bounds__(kThreads) adamw_kernel(AdamWTable table, AdamWConstants c) {
  constexpr bool kSettles = std::is_same_v<L, Bfloat16>;
  __shared__ Step shared;
  int index = 0;
  while (int(blockIdx.x) >= table.first_chunk[index + 1]) ++index;
  const AdamWEntry& entry = table.entries[index];
  const int64_t first =
      int64_t(blockIdx.x - table.first_chunk[index]) * kAdamWChunk + threadIdx.x * 4;
  if (c.skip && *c.skip != 0) return;
  const G* gradient = static_cast<const G*>(entry.gradient);
  L* low = static_cast<L*>(entry.low_precision);
  float g[4], p[4], m[4], v[4];
  const auto address = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
  const bool aligned =
      ((address(entry.parameter) | address(entry.exp_avg) | address(entry.exp_avg_sq) |
        address(gradient) | address(low) | address(entry.remainder)) &
       15) == 0;
  const bool whole = aligned && first + 4 <= entry.count;
  if (whole) {
    load4(gradient + first, g);
    if constexpr (kSplit) {
      load4(low + first, p);
      join(entry.remainder + first, p);
    } else {
      load4(entry.parameter + first, p);
    }
    load4(entry.exp_avg + first, m);
    load4(entry.exp_avg_sq + first, v);
  }
  read_step(c, entry, shared);
  __syncthreads();
  const Step step = shared;
  if (whole) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      update(c.epsilon, step, g[j], p[j], m[j], v[j]);
      if constexpr (kSettles) p[j] = settled(p[j]);
    }
    if constexpr (kSplit) {
      store_remainders(entry.remainder + first, p);
    } else {
      store4(entry.parameter + first, p);
    }
    store4(entry.exp_avg + first, m);
    store4(entry.exp_avg_sq + first, v);
    if (low) store4(low + first, p);
    return;
  }
  for (int64_t at = first; at < min(first + 4, entry.count); ++at) {
    float master;
    if constexpr (kSplit) {
      master = joined(to_float(low[at]), entry.remainder[at]);
    } else {
      master = entry.parameter[at];
    }
    update(c.epsilon, step, to_float(gradient[at]), master, entry.exp_avg[at],
           entry.exp_avg_sq[at]);
    if constexpr (kSettles) master = settled(master);
    if constexpr (kSplit) {
      entry.remainder[at] = remainder_of(master);
    } else {
      entry.parameter[at] = master;
    }
    if (low) low[at] = from_float<L>(master);
  }
}

constexpr int kSumThreads = 512;

__device__ double block_sum(float value) {
  __shared__ double warps[kSumThreads / 32];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  double total = 0;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kSumThreads / 32; ++i) total += warps[i];
  }
  return total;
}

template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    square_sum_kernel(SquareSumTable table, double* partial) {
  float sum = 0;
  int index = 0;
  for (int chunk = blockIdx.x; chunk < table.first_chunk[table.count]; chunk += gridDim.x) {
    while (chunk >= table.first_chunk[index + 1]) ++index;
    const int64_t first = int64_t(chunk - table.first_chunk[index]) * kSquareSumChunk;
    const int64_t count = min(int64_t(kSquareSumChunk), table.count_of[index] - first);
    const T* data = static_cast<const T*>(table.data[index]) + first;
    const bool aligned = (reinterpret_cast<uintptr_t>(data) & 15) == 0;
    const int vectors = aligned ? int(count / kWidth<T>) : 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < vectors; i += kSumThreads) {
      float value[kWidth<T>];
      unpack<T>(reinterpret_cast<const uint4*>(data)[i], value);
#pragma unroll
      for (int j = 0; j < kWidth<T>; ++j) sum += value[j] * value[j];
    }
    for (int64_t i = int64_t(vectors) * kWidth<T> + threadIdx.x; i < count; i += kSumThreads) {
      sum += to_float(data[i]) * to_float(data[i]);
    }
  }
  const double total = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

__global__ void add_partials_kernel(const double* partial, int count, float* result) {
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += 32) sum += partial[i];
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffU, sum, offset);
  if (threadIdx.x == 0) *result = float(sum);
}

__global__ void clipping_kernel(const float* squared_norm, const float* loss_scale, float max_norm,
                                float* results) {
  const float scale = *loss_scale, norm = sqrtf(*squared_norm) / scale;
  float coefficient = max_norm > 0 ? max_norm / (norm + 1e-6F) : 1.0F;
  if (coefficient > 1) coefficient = 1;  // a NaN stays
  results[0] = norm;
  results[1] = coefficient;
  results[2] = coefficient / scale;
  results[3] = isfinite(norm) ? 0.0F : 1.0F;
}

constexpr int kEmbeddingThreads = 512;

// One block per sorted position. The first of equal ids sums all of them, in the given order.
template <typename T>
__global__ void __launch_bounds__(kEmbeddingThreads)
    embedding_backward_kernel(const uint4* gradient, const int64_t* ids, const int64_t* order,
                              uint4* weight_gradient, int64_t rows, int n) {
  const int64_t first = blockIdx.x, id = ids[first];
  if (first > 0 && ids[first - 1] == id) return;
  // Counts equal ids first, so that the loads of rows do not wait.
  int64_t last = first + 1;
  for (int equal = int(blockDim.x); equal == int(blockDim.x); last += equal) {
    const int64_t at = last + threadIdx.x;
    equal = __syncthreads_count(at < rows && ids[at] == id);
  }
  const int vectors = n / 8;
  for (int at = threadIdx.x; at < vectors; at += blockDim.x) {
    float sum[8] = {}, value[8];
#pragma unroll 8
    for (int64_t i = first; i < last; ++i) {
      unpack<T>(gradient[order[i] * vectors + at], value);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += value[j];
    }
    uint4& target = weight_gradient[id * vectors + at];
    unpack<T>(target, value);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += value[j];
    target = pack<T>(sum);
  }
}

// As above without a sort, which takes longer than the sums of few rows. One block per row; the
// block of an id's first row finds the others and sums them in the same order.
template <typename T>
__global__ void __launch_bounds__(kEmbeddingThreads)
    embedding_backward_unsorted_kernel(const uint4* gradient, const int64_t* ids,
                                       uint4* weight_gradient, int rows, int n) {
  __shared__ int equal_rows[kMostUnsortedRows];
  __shared__ int of_warp[kEmbeddingThreads / 32];
  const int first = blockIdx.x, threads = blockDim.x;
  const int64_t id = ids[first];
  bool earlier = false;
#pragma unroll 4
  for (int row = threadIdx.x; row < first; row += threads) earlier |= ids[row] == id;
  if (__syncthreads_or(earlier)) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int count = 0;
  for (int base = first; base < rows; base += threads) {
    const int row = base + int(threadIdx.x);
    const bool equal = row < rows && ids[row] == id;
    const int found = __syncthreads_count(equal);
    if (found == 0) continue;
    const unsigned of_lanes = __ballot_sync(0xffffffffU, equal);
    if (lane == 0) of_warp[warp] = __popc(of_lanes);
    __syncthreads();
    int at = count + __popc(of_lanes & ((1U << lane) - 1));
    for (int i = 0; i < warp; ++i) at += of_warp[i];
    if (equal) equal_rows[at] = row;
    count += found;
  }
  __syncthreads();
  const int vectors = n / 8;
  for (int column = threadIdx.x; column < vectors; column += threads) {
    float sum[8] = {}, value[8];
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
      unpack<T>(gradient[int64_t(equal_rows[i]) * vectors + column], value);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += value[j];
    }
    uint4& target = weight_gradient[id * vectors + column];
    unpack<T>(target, value);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += value[j];
    target = pack<T>(sum);
  }
}

int embedding_threads(int n) { return std::min(kEmbeddingThreads, (n / 8 + 31) / 32 * 32); }

}  // namespace

void adamw(Type gradient_type, Type low_type, const AdamWTable& table,
           const AdamWConstants& constants, cudaStream_t stream) {
  const unsigned blocks = unsigned(table.first_chunk[table.count]);
  with_type(gradient_type, [&](auto gradient_tag) {
    with_type(low_type, [&](auto low_tag) {
      using G = typename decltype(gradient_tag)::type;
      using L = typename decltype(low_tag)::type;
      auto* kernel = adamw_kernel<G, L, /*kSplit=*/false>;
      if constexpr (std::is_same_v<L, Bfloat16>) {
        if (table.entries[0].remainder) kernel = adamw_kernel<G, L, /*kSplit=*/true>;
      }
      kernel<<<blocks, kThreads, 0, stream>>>(table, constants);
    });
  });
}

void square_sum(Type type, const SquareSumTable& table, double* partial, cudaStream_t stream) {
  with_type(type, [&](auto tag) {
    square_sum_kernel<typename decltype(tag)::type>
        <<<kSquareSumParts, kSumThreads, 0, stream>>>(table, partial);
  });
}

void add_partials(const double* partial, int count, float* result, cudaStream_t stream) {
  add_partials_kernel<<<1, 32, 0, stream>>>(partial, count, result);
}

void clipping(const float* squared_norm, const float* loss_scale, float max_norm, float* results,
              cudaStream_t stream) {
  clipping_kernel<<<1, 1, 0, stream>>>(squared_norm, loss_scale, max_norm, results);
}

void embedding_backward_unsorted(Type type, const void* gradient, const int64_t* ids,
                                 void* weight_gradient, int rows, int n, cudaStream_t stream) {
  const int threads = std::max(128, embedding_threads(n));
  with_16_bit_type(type, [&](auto tag) {
    embedding_backward_unsorted_kernel<typename decltype(tag)::type>
        <<<unsigned(rows), threads, 0, stream>>>(static_cast<const uint4*>(gradient), ids,
                                                 static_cast<uint4*>(weight_gradient), rows, n);
  });
}

void embedding_backward(Type type, const void* gradient, const int64_t* sorted_ids,
                        const int64_t* order, void* weight_gradient, int64_t rows, int n,
                        cudaStream_t stream) {
  with_16_bit_type(type, [&](auto tag) {
    embedding_backward_kernel<typename decltype(tag)::type>
        <<<unsigned(rows), embedding_threads(n), 0, stream>>>(
            static_cast<const uint4*>(gradient), sorted_ids, order,
            static_cast<uint4*>(weight_gradient), rows, n);
  });
}

}  // namespace tessera::ops::cuda
