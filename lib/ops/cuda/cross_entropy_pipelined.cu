// SPDX-License-Identifier: MIT
// In-place softmax cross-entropy for wide 16-bit rows: each row is read once.
//
// [Note: pipelined rows]
// The grid has as many clusters as the GPU holds at once; cluster c of n takes rows c, c + n and so
// on. A cluster's blocks cut a row into shares. Each block has kStages stages of shared memory for
// its share of consecutive rows. Bulk copies fill them ahead, so that device memory is busy while
// the block computes. A row takes two passes over shared memory: statistics (maximum and sum of
// exponentials), then the gradient, which goes straight to device memory. In between, blocks
// exchange statistics: each stores its own into all blocks' shared memory, where a barrier counts
// them. The exchange is hidden: iteration i sends row i's statistics, then computes row i - 1's
// gradient, whose statistics have arrived. After it row i - 1's stage is free for the row kStages
// later.
// An iteration that sends statistics e has received all of e - 2. So every block has sent e - 2
// and, before that, read e - 4; it may still have to read e - 3. Four slots thus never overwrite
// pending statistics; three could. Ignored rows exchange nothing, in all blocks alike.
#include <map>
#include <mutex>
#include <tuple>
#include <type_traits>

#include "lib/ops/cuda/cluster.cuh"
#include "lib/ops/cuda/cross_entropy.cuh"
#include "lib/ops/cuda/dispatch.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kStages = 3, kSlots = 4;
constexpr int kPieceWidth = kWidth<Half>;  // elements per 16 bytes

struct Rows {
  int64_t stride;
  const int64_t* labels;
  const float* scale;
  float* loss;
  int count, vocabulary;
};

template <int kCluster, int kThreads>
struct SharedState {
  Barrier filled[kStages], received[kSlots];
  int labels[kStages];
  float2 warps[kThreads / 32];
  float2 blocks[kSlots][kCluster];
};

__host__ __device__ constexpr int pieces_of(int vocabulary) {
  return (vocabulary + kPieceWidth - 1) / kPieceWidth;
}
__host__ __device__ constexpr int share_of(int vocabulary, int cluster) {
  return (pieces_of(vocabulary) + cluster - 1) / cluster;
}

// Merges the first kLanes lanes, a power of two; all of them get the result.
template <int kLanes>
__device__ __forceinline__ Statistics merge_lanes(float2 mine) {
  Statistics all{mine.x, mine.y};
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset >>= 1)
    all.maximum = fmaxf(all.maximum, __shfl_xor_sync(0xffffffffU, all.maximum, offset));
  all.sum *= power_of_two(mine.x - all.maximum);
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset >>= 1)
    all.sum += __shfl_xor_sync(0xffffffffU, all.sum, offset);
  return all;
}

template <typename T, int kPieces>
__device__ __forceinline__ float maximum_of(const uint4 (&raw)[kPieces]) {
  using Pair = std::conditional_t<std::is_same_v<T, Half>, __half2, __nv_bfloat162>;
  const Pair* const pairs = reinterpret_cast<const Pair*>(raw);
  Pair maximum = pairs[0];
#pragma unroll
  for (int i = 1; i < 4 * kPieces; ++i) maximum = __hmax2(maximum, pairs[i]);
  return fmaxf(to_float(maximum.x), to_float(maximum.y));
}

template <typename T, int kPieces>
__device__ __forceinline__ void add_pieces(const uint4 (&raw)[kPieces], Statistics& mine) {
  const float maximum = maximum_of<T>(raw) * kLog2E;
  if (maximum > mine.maximum) {
    mine.sum *= power_of_two(mine.maximum - maximum);
    mine.maximum = maximum;
  }
  float odd = 0;  // a second sum shortens chains of additions
#pragma unroll
  for (int u = 0; u < kPieces; ++u) {
    float value[kPieceWidth];
    unpack<T>(raw[u], value);
#pragma unroll
    for (int j = 0; j < kPieceWidth; j += 2) {
      mine.sum += power_of_two(fmaf(value[j], kLog2E, -mine.maximum));
      odd += power_of_two(fmaf(value[j + 1], kLog2E, -mine.maximum));
    }
  }
  mine.sum += odd;
}

// A block's part in its cluster's rows.
template <typename T, int kCluster, int kThreads>
struct Worker {
  static constexpr int kUnknown = -1;  // a label outside the vocabulary

  T* logits;
  const Rows& in;
  uint4* stages;
  SharedState<kCluster, kThreads>& shared;
  int rank, share, first, count;  // in pieces: of a stage, and this block's of a row

  __device__ uint4* stage_at(int stage) const { return stages + stage * share; }
  __device__ uint4* share_at(int index) const {
    return reinterpret_cast<uint4*>(logits + index * in.stride) + first;
  }
  __device__ int label_of(int index) const {
    const int64_t label = in.labels[index];
    if (label == kIgnored) return kIgnored;
    return label >= 0 && label < in.vocabulary ? int(label) : kUnknown;
  }

  // Starts the copy of a row's share and its label into a stage; logits of ignored rows are never
  // read.
  __device__ void request(int index, int label, int stage) const {
    shared.labels[stage] = label;
    if (label == kIgnored) {
      shared.filled[stage].arrive();
    } else {
      const uint32_t bytes = count * sizeof(uint4);
      shared.filled[stage].arrive_expecting(bytes);
      copy_bulk(stage_at(stage), share_at(index), bytes, shared.filled[stage]);
    }
  }

  __device__ void write_ignored(int index) const {
    uint4* const gradient = share_at(index);
    for (int at = threadIdx.x; at < count; at += kThreads)
      __stcs(gradient + at, make_uint4(0, 0, 0, 0));
    if (rank == 0 && threadIdx.x == 0) in.loss[index] = 0;
  }

  // Sets columns beyond the last one to -inf, in the thread whose first pass reads this piece.
  __device__ void hide_padding(uint4* pieces) const {
    const int left = in.vocabulary % kPieceWidth, last = count - 1;
    if (left == 0 || rank != kCluster - 1 || int(threadIdx.x) != last % kThreads) return;
    float value[kPieceWidth];
    unpack<T>(pieces[last], value);
#pragma unroll
    for (int j = 0; j < kPieceWidth; ++j) {
      if (j >= left) value[j] = -INFINITY;
    }
    pieces[last] = pack<T>(value);
    fence_bulk_copies();  // before the copy of the stage's next row
  }

  // Statistics of this thread's pieces.
  __device__ Statistics first_pass(int stage) const {
    uint4* const pieces = stage_at(stage);
    hide_padding(pieces);
    Statistics mine;
    int at = threadIdx.x;
#pragma unroll 1
    for (; at + kThreads < count; at += 2 * kThreads) {
      const uint4 raw[2] = {pieces[at], pieces[at + kThreads]};
      add_pieces<T>(raw, mine);
    }
    if (at < count) {
      const uint4 raw[1] = {pieces[at]};
      add_pieces<T>(raw, mine);
    }
    return mine;
  }

  // Sends the block's statistics to all blocks of the cluster, itself included.
  __device__ void send(const Statistics& mine, uint32_t exchange) const {
    const Statistics warp = merge_lanes<32>({mine.maximum, mine.sum});
    if (threadIdx.x % 32 == 0) shared.warps[threadIdx.x / 32] = {warp.maximum, warp.sum};
    __syncthreads();
    if (threadIdx.x >= 32) return;
    const int slot = exchange % kSlots;
    if (threadIdx.x == 0) shared.received[slot].arrive_expecting(kCluster * sizeof(float2));
    const Statistics block = merge_lanes<32>(threadIdx.x < kThreads / 32 ? shared.warps[threadIdx.x]
                                                                         : float2{kLowest, 0});
    if (threadIdx.x < kCluster) {
      store_async({block.maximum, block.sum}, shared.blocks[slot][rank], shared.received[slot],
                  threadIdx.x);
    }
  }

  // Statistics of the whole row.
  __device__ Statistics receive(uint32_t exchange) const {
    const int slot = exchange % kSlots;
    shared.received[slot].wait(exchange / kSlots);
    return merge_lanes<kCluster>(shared.blocks[slot][threadIdx.x % kCluster]);
  }

  // Loss and gradient; the stage keeps the logits, so the label's can be read at any time.
  __device__ void second_pass(int index, int stage, int label, float log_sum, float scale) const {
    const uint4* const pieces = stage_at(stage);
    const int known = max(label, 0), label_piece = known / kPieceWidth - first;
    if (threadIdx.x == 0 && label_piece >= 0 && label_piece < count) {
      const T* const values = reinterpret_cast<const T*>(pieces + label_piece);
      const float target = label == kUnknown ? NAN : to_float(values[known % kPieceWidth]);
      in.loss[index] = log_sum / kLog2E - target;
    }
    if (label == kUnknown) scale = NAN;
    uint4* const gradient = share_at(index);
#pragma unroll 2
    for (int at = threadIdx.x; at < count; at += kThreads) {
      float value[kPieceWidth];
      unpack<T>(pieces[at], value);
#pragma unroll
      for (int j = 0; j < kPieceWidth; ++j)
        value[j] = power_of_two(fmaf(value[j], kLog2E, -log_sum)) * scale;
      if (at == label_piece) {
#pragma unroll
        for (int j = 0; j < kPieceWidth; ++j) {
          if (j == known % kPieceWidth) value[j] -= scale;
        }
      }
      __stcs(gradient + at, pack<T>(value));
    }
  }

  // Rows begin, begin + step and so on. One iteration more than there are rows: a row's gradient
  // follows one iteration after its statistics.
  __device__ void run(int begin, int step) const {
    const bool producer = threadIdx.x == 32;  // in a warp that does not send
    if (producer) {
      for (Barrier& barrier : shared.filled) barrier.initialize();
      for (Barrier& barrier : shared.received) barrier.initialize();
      publish_barriers();
      for (int stage = 0; stage < kStages; ++stage) {
        const int index = begin + stage * step;
        if (index < in.count) request(index, label_of(index), stage);
      }
    }
    __syncthreads();
    synchronize_cluster();
    const float scale = *in.scale;
    int stage = 0, stage_before = 0, label = kIgnored, label_ahead = kIgnored;
    uint32_t fillings = 0, sent = 0, received = 0;  // fillings: how often each stage was filled
#pragma unroll 1
    for (int index = begin; index < in.count + step; index += step) {
      const int label_before = label, ahead = index + (kStages - 1) * step;
      const bool requests = producer && index > begin && ahead < in.count;
      if (requests) label_ahead = label_of(ahead);  // prefetched long before it is needed
      if (index < in.count) {
        shared.filled[stage].wait(fillings);
        label = shared.labels[stage];
        if (label == kIgnored) {
          write_ignored(index);
        } else {
          send(first_pass(stage), sent++);
        }
      }
      if (label_before != kIgnored) {
        const float log_sum = receive(received++).log_sum();
        second_pass(index - step, stage_before, label_before, log_sum, scale);
      }
      // All threads have read row index - step's stage and this iteration's statistics.
      __syncthreads();
      if (requests) request(ahead, label_ahead, stage_before);
      stage_before = stage;
      if (++stage == kStages) stage = 0, ++fillings;
    }
  }
};

template <typename T, int kCluster, int kThreads>
__global__ void __launch_bounds__(kThreads, 1)
    pipelined_kernel(T* logits, const __grid_constant__ Rows in) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint4 stages[];
  __shared__ SharedState<kCluster, kThreads> shared;
  const int rank = blockIdx.x % kCluster, share = share_of(in.vocabulary, kCluster);
  const int first = rank * share, count = min(share, pieces_of(in.vocabulary) - first);
  Worker<T, kCluster, kThreads>{logits, in, stages, shared, rank, share, first, count}.run(
      blockIdx.x / kCluster, gridDim.x / kCluster);
#endif
}

int current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

// Shared memory in bytes that a block may use for stages.
int shared_limit() {
  constexpr int kReserved = 1024;
  static_assert(sizeof(SharedState<8, 1024>) + 128 <= kReserved, "with the stages' alignment");
  int bytes = 0;
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, current_device());
  return bytes - kReserved;
}

// Clusters the current device holds at once; 0 if the kernel cannot run.
int resident_clusters(const void* kernel, const cudaLaunchConfig_t& configuration) {
  static std::mutex mutex;
  static std::map<std::tuple<int, const void*, size_t>, int> counts;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] =
      counts.try_emplace({current_device(), kernel, configuration.dynamicSmemBytes}, 0);
  if (is_new) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_limit());
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                         cudaSharedmemCarveoutMaxShared);
    if (cudaOccupancyMaxActiveClusters(&entry->second, kernel, &configuration) != cudaSuccess) {
      cudaGetLastError();  // clears the error for later checks
    }
  }
  return entry->second;
}

template <typename T, int kCluster, int kThreads>
bool launch(T* logits, const Rows& in, cudaStream_t stream) {
  const auto kernel = pipelined_kernel<T, kCluster, kThreads>;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t configuration = {};
  configuration.gridDim = dim3(kCluster * 4096);  // more than can be resident
  configuration.blockDim = dim3(kThreads);
  configuration.dynamicSmemBytes = kStages * sizeof(uint4) * share_of(in.vocabulary, kCluster);
  configuration.stream = stream;
  configuration.attrs = &attribute;
  configuration.numAttrs = 1;
  const int clusters = resident_clusters(reinterpret_cast<const void*>(kernel), configuration);
  if (clusters == 0 || in.count < clusters) return false;
  configuration.gridDim = dim3(unsigned(clusters * kCluster));
  cudaLaunchKernelEx(&configuration, kernel, logits, in);
  return true;
}

}  // namespace

bool cross_entropy_pipelined(Type type, const LogitRows& rows, const float* scale, float* row_loss,
                             cudaStream_t stream) {
  // Faster from about 50257 columns up by measurement; no block's share may be empty.
  constexpr int kLeastVocabulary = 50000;
  const int vocabulary = rows.vocabulary;
  if (type == Type::kFloat || vocabulary < kLeastVocabulary || rows.rows > INT32_MAX / 2) {
    return false;
  }
  const Rows in{rows.stride, rows.labels, scale, row_loss, int(rows.rows), vocabulary};
  const int limit = shared_limit();
  const auto fits = [&](int cluster) {
    return int64_t(kStages) * int64_t(sizeof(uint4)) * share_of(vocabulary, cluster) <= limit;
  };
  bool launched = false;
  with_16_bit_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const values = static_cast<T*>(rows.logits);
    // Fastest on an H200: the smallest cluster, with this number of threads.
    if (fits(2)) {
      launched = launch<T, 2, 1024>(values, in, stream);
    } else if (fits(4)) {
      launched = launch<T, 4, 1024>(values, in, stream);
    } else if (fits(8)) {
      launched = launch<T, 8, 512>(values, in, stream);
    }
  });
  return launched;
}

}  // namespace tessera::ops::cuda
