// SPDX-License-Identifier: MIT
// In-place softmax cross-entropy: a cluster of blocks shares a row and reads it twice. Few rows are
// in flight, so the second read hits the L2 cache and device memory sees one read and one write.
// Wide 16-bit rows with a scale go to cross_entropy_pipelined.cu.
#include <cooperative_groups.h>

#include "lib/ops/cuda/cross_entropy.cuh"
#include "lib/ops/cuda/dispatch.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kUnroll = 4;

template <typename T>
struct Row {
  uint4* data;
  int columns, first, last;  // this block's share in 16-byte pieces

  // Reads a piece in fp32, -inf beyond the last column.
  __device__ void read(const uint4& raw, int at, float (&out)[kWidth<T>]) const {
    unpack<T>(raw, out);
    const int left = columns - at * kWidth<T>;
    if (left >= kWidth<T>) return;
#pragma unroll
    for (int j = 0; j < kWidth<T>; ++j) {
      if (j >= left) out[j] = -INFINITY;
    }
  }
};

template <typename T, int kThreads>
__device__ Statistics first_pass(const Row<T>& row) {
  Statistics mine;
  for (int base = row.first + threadIdx.x; base < row.last; base += kUnroll * kThreads) {
    uint4 raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = base + u * kThreads;
      if (at < row.last) raw[u] = __ldcg(row.data + at);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = base + u * kThreads;
      if (at >= row.last) break;
      float value[kWidth<T>];
      row.read(raw[u], at, value);
      float top = value[0];
#pragma unroll
      for (int j = 1; j < kWidth<T>; ++j) top = fmaxf(top, value[j]);
      top *= kLog2E;
      if (top > mine.maximum) {
        mine.sum *= power_of_two(mine.maximum - top);
        mine.maximum = top;
      }
#pragma unroll
      for (int j = 0; j < kWidth<T>; ++j)
        mine.sum += power_of_two(fmaf(value[j], kLog2E, -mine.maximum));
    }
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    const float maximum = __shfl_xor_sync(0xffffffffU, mine.maximum, offset);
    mine.merge(maximum, __shfl_xor_sync(0xffffffffU, mine.sum, offset));
  }
  return mine;
}

template <typename T, int kThreads>
__device__ void second_pass(const Row<T>& row, float log_sum, float scale, int64_t label) {
  const int label_piece = int(label / kWidth<T>), label_column = int(label % kWidth<T>);
  for (int base = row.first + threadIdx.x; base < row.last; base += kUnroll * kThreads) {
    uint4 raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = base + u * kThreads;
      if (at < row.last) raw[u] = __ldcs(row.data + at);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = base + u * kThreads;
      if (at >= row.last) break;
      float value[kWidth<T>];
      row.read(raw[u], at, value);
#pragma unroll
      for (int j = 0; j < kWidth<T>; ++j)
        value[j] = power_of_two(fmaf(value[j], kLog2E, -log_sum)) * scale;
      if (at == label_piece) {
#pragma unroll
        for (int j = 0; j < kWidth<T>; ++j) {
          if (j == label_column) value[j] -= scale;
        }
      }
      __stcs(row.data + at, pack<T>(value));
    }
  }
}

// Merges the statistics of the cluster's blocks. Their shared memory must stay valid until
// leave_cluster().
template <int kCluster>
__device__ Statistics merge_cluster(const Statistics* block) {
  if constexpr (kCluster == 1) {
    __syncthreads();
    return *block;
  }
  Statistics whole;
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
#pragma unroll
  for (int i = 0; i < kCluster; ++i) {
    const Statistics* other = cluster.map_shared_rank(block, i);
    whole.merge(other->maximum, other->sum);
  }
  cluster.barrier_arrive();
#endif
  return whole;
}

template <int kCluster>
__device__ void leave_cluster() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) cooperative_groups::this_cluster().barrier_wait();
#endif
}

// kWhole: loss, and gradient where there is a scale. kStatistics and kGradient: the two halves of
// that for logits that are a column part of wider ones.
enum class Mode { kWhole, kStatistics, kGradient };

struct Rows {
  int64_t stride;
  const int64_t* labels;
  int vocabulary;
  const float* scale;       // may be null
  const float* statistics;  // kGradient: [parts, 2, rows]
  int64_t parts, rows;
  float* first;   // loss; kStatistics: log-sum-exp
  float* second;  // kStatistics: the label's logit
};

// Log-sum-exp (in log2 units) and the label's logit, merged over all column parts.
__device__ float2 merge_parts(const Rows& in, int64_t index) {
  Statistics whole;
  float target = 0;
  for (int64_t part = 0; part < in.parts; ++part) {
    const float* of_part = in.statistics + 2 * part * in.rows + index;
    whole.merge(of_part[0] * kLog2E, 1);
    target += of_part[in.rows];
  }
  return {isnan(target) ? NAN : whole.log_sum(), target};
}

template <typename T, int kCluster, int kThreads, int kMinBlocks, Mode kMode>
__global__ void __launch_bounds__(kThreads, kMinBlocks) cross_entropy_kernel(T* logits, Rows in) {
  const int64_t index = blockIdx.x / kCluster, label = in.labels[index];
  const int rank = blockIdx.x % kCluster;
  const bool writes = rank == 0 && threadIdx.x == 0;
  const int pieces = (in.vocabulary + kWidth<T> - 1) / kWidth<T>;
  const int share = (pieces + kCluster - 1) / kCluster;
  T* start = logits + index * in.stride;
  const Row<T> row{reinterpret_cast<uint4*>(start), in.vocabulary, min(rank * share, pieces),
                   min((rank + 1) * share, pieces)};
  if (label == kIgnored) {  // uniform for the whole cluster
    if (in.scale) {
      for (int at = row.first + threadIdx.x; at < row.last; at += kThreads) {
        __stcs(row.data + at, make_uint4(0, 0, 0, 0));
      }
    }
    if (writes) in.first[index] = 0;
    if (kMode == Mode::kStatistics && writes) in.second[index] = 0;
    return;
  }
  const bool known = label >= 0 && label < in.vocabulary;
  if constexpr (kMode == Mode::kGradient) {
    const float2 whole = merge_parts(in, index);
    if (writes) in.first[index] = whole.x / kLog2E - whole.y;
    if (in.scale) second_pass<T, kThreads>(row, whole.x, *in.scale, known ? label : -1);
  } else {
    __shared__ Statistics warps[kThreads / 32], block;
    // Read before any block of the cluster can overwrite it.
    const bool elsewhere = kMode == Mode::kStatistics && label >= in.vocabulary;
    const float target = known ? to_float(start[label]) : elsewhere ? 0 : NAN;
    const Statistics mine = first_pass<T, kThreads>(row);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x < 32) {
      Statistics all = threadIdx.x < kThreads / 32 ? warps[threadIdx.x] : Statistics{};
#pragma unroll
      for (int offset = kThreads / 64; offset > 0; offset >>= 1) {
        const float maximum = __shfl_xor_sync(0xffffffffU, all.maximum, offset);
        all.merge(maximum, __shfl_xor_sync(0xffffffffU, all.sum, offset));
      }
      if (threadIdx.x == 0) block = all;
    }
    const Statistics whole = merge_cluster<kCluster>(&block);
    const float log_sum = whole.log_sum();
    if constexpr (kMode == Mode::kWhole) {
      if (writes) in.first[index] = log_sum / kLog2E - target;
      if (in.scale) {
        second_pass<T, kThreads>(row, log_sum, known ? *in.scale : NAN, known ? label : 0);
      }
    } else if (writes) {
      in.first[index] = log_sum / kLog2E;
      in.second[index] = target;
    }
    leave_cluster<kCluster>();
  }
}

bool has_clusters() {
  static const bool result = [] {
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major >= 9;
  }();
  return result;
}

template <Mode kMode>
void launch_rows(Type type, void* logits, const Rows& in, int64_t rows, cudaStream_t stream) {
  with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto launch = [&](auto kernel, int cluster, int threads) {
      cudaLaunchConfig_t configuration = {};
      configuration.gridDim = dim3(unsigned(rows * cluster));
      configuration.blockDim = dim3(threads);
      configuration.stream = stream;
      cudaLaunchAttribute attribute;
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {unsigned(cluster), 1, 1};
      configuration.attrs = &attribute;
      configuration.numAttrs = cluster > 1 ? 1 : 0;
      cudaLaunchKernelEx(&configuration, kernel, static_cast<T*>(logits), in);
    };
    if (has_clusters() && in.vocabulary >= 16384) {
      launch(cross_entropy_kernel<T, 8, 256, 4, kMode>, 8, 256);  // fastest of 12 on an H200
    } else {
      launch(cross_entropy_kernel<T, 1, 512, 2, kMode>, 1, 512);
    }
  });
}

}  // namespace

void cross_entropy(Type type, const LogitRows& rows, const float* scale, float* row_loss,
                   cudaStream_t stream) {
  if (scale && has_clusters() && cross_entropy_pipelined(type, rows, scale, row_loss, stream)) {
    return;
  }
  const Rows in{.stride = rows.stride,
                .labels = rows.labels,
                .vocabulary = rows.vocabulary,
                .scale = scale,
                .first = row_loss};
  launch_rows<Mode::kWhole>(type, rows.logits, in, rows.rows, stream);
}

void cross_entropy_statistics(Type type, const LogitRows& rows, float* statistics,
                              cudaStream_t stream) {
  const Rows in{.stride = rows.stride,
                .labels = rows.labels,
                .vocabulary = rows.vocabulary,
                .first = statistics,
                .second = statistics + rows.rows};
  launch_rows<Mode::kStatistics>(type, rows.logits, in, rows.rows, stream);
}

void cross_entropy_gradient(Type type, const LogitRows& rows, const float* statistics, int parts,
                            const float* scale, float* row_loss, cudaStream_t stream) {
  const Rows in{.stride = rows.stride,
                .labels = rows.labels,
                .vocabulary = rows.vocabulary,
                .scale = scale,
                .statistics = statistics,
                .parts = parts,
                .rows = rows.rows,
                .first = row_loss};
  launch_rows<Mode::kGradient>(type, rows.logits, in, rows.rows, stream);
}

}  // namespace tessera::ops::cuda
