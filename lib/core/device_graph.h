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

// What graphs share that never run at the same time: memory that their work takes turns in, and
// the stream on which it is recorded.
struct DeviceGraphPool {
  c10::Stream stream;
  std::pair<uint64_t, uint64_t> memory;
};
DeviceGraphPool make_graph_pool(at::Device device);
// Memory of graphs that are all gone goes back to the device.
void give_back(const DeviceGraphPool& pool);

// Work of a device that is recorded once and then issued by one call. What it reads and writes
// stays where it was; memory that was allocated while it was recorded is this graph's, and tensors
// that live on hold what the last run has written.
class DeviceGraph : NotCopied {
 public:
  // Whether work on the device's current stream can be recorded.
  static bool can_record(at::Device device);

  // Runs work, of which the device computes nothing, on the pool's stream. Throws what work throws,
  // and what recording has to say of it: nothing is left open.
  DeviceGraph(const DeviceGraphPool& pool, const std::function<void()>& work);
  ~DeviceGraph();    // waits for the device
  void run() const;  // on the current stream

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
