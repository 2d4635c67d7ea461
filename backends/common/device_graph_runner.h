// SPDX-License-Identifier: MIT
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lib/core/device_graph.h"

namespace tessera {

// [Note: recorded tokens]
// Decoding one token launches many short kernels, and the GPU waits for the host. So they are
// captured in a CUDA graph. The first runs launch kernel by kernel: they allocate persistent memory
// and autotune. The graph reads positions and lengths on the device, and uses the same memory every
// time.
//
// Not captured: fewer than kLeastRuns runs; a CPU; another stream or other tensors than in the
// previous run; too little device memory for both; work that cannot be captured; everything with
// TESSERA_CUDA_GRAPH=0.
class DeviceGraphRunner : NotCopied {
 public:
  using Work = std::function<at::Tensor()>;
  static constexpr int64_t kLeastRuns = 16;  // capture takes as long as some runs

  // runs: most calls of run().
  DeviceGraphRunner(at::Device device, int64_t runs);
  ~DeviceGraphRunner();  // waits for the device, and frees memory

  // Runs work on the current stream, which must be the same except for the values of inputs. The
  // result is valid until the next call.
  at::Tensor run(const std::vector<at::Tensor>& inputs, const Work& work);
  bool is_recorded() const { return graph_ != nullptr; }

 private:
  at::Tensor run_eagerly(const Work& work);
  void record(const Work& work);

  const at::Device device_;
  bool may_record_;
  std::vector<const void*> inputs_;  // inputs of the last run
  bool settled_ = false;             // whether the last run allocated and tuned nothing new
  int64_t runs_ = 0;
  int64_t bytes_ = 0;  // upper bound of a run's allocations
  std::optional<DeviceGraphPool> pool_;
  std::unique_ptr<DeviceGraph> graph_;
  at::Tensor result_;  // result of the graph
};

}  // namespace tessera
