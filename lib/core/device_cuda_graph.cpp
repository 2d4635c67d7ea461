// SPDX-License-Identifier: MIT
// CUDA graphs with memory from LibTorch's caching allocator.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <utility>

#include "lib/core/device_graph.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) == cudaSuccess) {
    return status != cudaStreamCaptureStatusNone;
  }
  cudaGetLastError();  // clears the error: a query of the legacy stream during a capture
  return false;
}

// Stream capture. The calling thread must not wait for the device meanwhile; other threads are
// free. Allocations on the captured stream come from the pool.
class Capture : NotCopied {
 public:
  Capture(c10::cuda::CUDAStream stream, c10::MempoolId_t memory)
      : stream_(stream), memory_(std::move(memory)) {
    allocator::beginAllocateToPool(stream.device_index(), memory_, is_captured);
    check_begun(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  }
  ~Capture() {
    if (!open_) return;  // otherwise unwinding after an exception
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream_, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();  // clears the known error
    close(/*give_back=*/true);
  }
  // The captured graph, to be destroyed by the caller.
  cudaGraph_t end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
    close(/*give_back=*/ended != cudaSuccess);
    check_cuda(ended, "recording failed");
    return graph;
  }

  static void check_cuda(cudaError_t result, const char* what) {
    if (result == cudaSuccess) return;
    cudaGetLastError();  // clears the error, which is reported here
    fail(ErrorCode::kUnavailable, what, ": ", cudaGetErrorString(result));
  }

 private:
  void check_begun(cudaError_t begun) {
    if (begun != cudaSuccess) close(/*give_back=*/true);
    check_cuda(begun, "recording cannot begin");
  }
  void close(bool give_back) {
    open_ = false;
    allocator::endAllocateToPool(stream_.device_index(), memory_);
    if (give_back) allocator::releasePool(stream_.device_index(), memory_);
  }

  c10::cuda::CUDAStream stream_;
  c10::MempoolId_t memory_;
  bool open_ = true;
};

}  // namespace

struct DeviceGraph::State {
  c10::DeviceIndex device = 0;
  c10::MempoolId_t memory;
  cudaGraphExec_t graph = nullptr;
};

// LibTorch keeps workspaces for every stream that computes, so all pools share one stream.
DeviceGraphPool make_graph_pool(at::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::Stream> streams;
  const std::lock_guard lock(mutex);
  const auto [stream, made] = streams.try_emplace(device.index(), side_stream(device));
  return {stream->second, at::cuda::graph_pool_handle()};
}

void give_back(const DeviceGraphPool& pool) { allocator::emptyCache(pool.memory); }

bool DeviceGraph::can_record(at::Device device) {
  if (!device.is_cuda()) return false;
  const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(device.index());
  // Workspaces belong to the default stream, on which the graph will run.
  return current == c10::cuda::getDefaultCUDAStream(device.index()) && !is_captured(current);
}

DeviceGraph::DeviceGraph(const DeviceGraphPool& pool, const std::function<void()>& work)
    : state_(std::make_unique<State>()) {
  const StreamScope scope(pool.stream);
  const c10::cuda::CUDAStream stream(pool.stream);
  state_->device = stream.device_index();
  state_->memory = pool.memory;
  cudaGraph_t graph = nullptr;
  {
    Capture capture(stream, pool.memory);
    work();
    graph = capture.end();
  }
  const cudaError_t made = cudaGraphInstantiateWithFlags(&state_->graph, graph, 0);
  cudaGraphDestroy(graph);
  if (made != cudaSuccess) allocator::releasePool(state_->device, pool.memory);
  Capture::check_cuda(made, "what was recorded cannot run");
}

DeviceGraph::~DeviceGraph() {
  cudaDeviceSynchronize();
  cudaGraphExecDestroy(state_->graph);
  allocator::releasePool(state_->device, state_->memory);
}

void DeviceGraph::run() const {
  C10_CUDA_CHECK(cudaGraphLaunch(state_->graph, c10::cuda::getCurrentCUDAStream(state_->device)));
}

}  // namespace tessera
