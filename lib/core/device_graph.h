// SPDX-License-Identifier: MIT
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "tessera/core/not_copied.h"

namespace tessera {

// Shared by graphs that never run at the same time: their memory pool, and the stream of capture.
struct DeviceGraphPool {
  c10::Stream stream;
  std::pair<uint64_t, uint64_t> memory;
};
DeviceGraphPool make_graph_pool(at::Device device);
// Frees the pool's memory once all its graphs are destroyed.
void give_back(const DeviceGraphPool& pool);

// A captured CUDA graph, launched by one call. Its inputs and outputs keep their addresses. Memory
// allocated during capture belongs to the graph; surviving tensors hold the last run's values.
class DeviceGraph : NotCopied {
 public:
  // True if work on the device's current stream can be captured.
  static bool can_record(at::Device device);

  // Captures `work` on the pool's stream without executing it. Rethrows what `work` throws, and
  // throws on capture errors; the capture is ended in both cases.
  DeviceGraph(const DeviceGraphPool& pool, const std::function<void()>& work);
  ~DeviceGraph();    // waits for the device
  void run() const;  // on the current stream

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
