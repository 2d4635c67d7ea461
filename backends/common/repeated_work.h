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
// The kernels of one more token of rows are many and short, and a GPU waits for the host that
// issues them. So they are recorded and issued by one call. The first runs go kernel by kernel:
// they allocate what stays and find out which algorithms are fastest. What is recorded finds places
// and lengths on the device, and reads and writes the same memory every time.
//
// Kernel by kernel runs what is to run less than kLeastRuns times, what runs on a CPU, beside
// another stream or on other tensors than those of the run before, whatever the device has no room
// for twice, what cannot be recorded, and everything with TESSERA_CUDA_GRAPH=0.
class RepeatedWork : NotCopied {
 public:
  using Work = std::function<at::Tensor()>;
  static constexpr int64_t kLeastRuns = 16;  // recording takes as long as some of them

  // runs: so often run() is called at most.
  RepeatedWork(at::Device device, int64_t runs);
  ~RepeatedWork();  // waits for the device, and gives memory back

  // Work on the current stream that is always the same but for what lies in the memory of inputs.
  // What it returns lasts until the next call.
  at::Tensor run(const std::vector<at::Tensor>& inputs, const Work& work);
  bool is_recorded() const { return graph_ != nullptr; }

 private:
  at::Tensor run_eagerly(const Work& work);
  void record(const Work& work);

  const at::Device device_;
  bool may_record_;
  std::vector<const void*> inputs_;  // of the last run
  bool settled_ = false;             // it found everything as it will stay
  int64_t runs_ = 0;
  int64_t bytes_ = 0;  // that a run allocates at most
  std::optional<DeviceGraphPool> pool_;
  std::unique_ptr<DeviceGraph> graph_;
  at::Tensor result_;  // of what is recorded
};

}  // namespace tessera
