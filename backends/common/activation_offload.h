// SPDX-License-Identifier: MIT
#pragma once
// Activations of recomputed blocks in host memory, from forward to backward.
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "lib/core/host_threads.h"
#include "tessera/backends/strategy.h"
#include "tessera/core/device.h"

namespace tessera {

// Reused host buffers. A buffer is written by one stream and read by another; it may be written
// again after its last read.
class HostBufferPool {
 public:
  struct Buffer {
    at::Tensor bytes;  // kByte [capacity], on the host
    Marker read;       // end of the last copy out of it
  };
  HostBufferPool(at::Device device, bool pinned);
  ~HostBufferPool();  // waits for copies out of buffers
  HostBufferPool(const HostBufferPool&) = delete;
  HostBufferPool& operator=(const HostBufferPool&) = delete;

  // The smallest free buffer that suffices, or a new one. Throws Error(kResourceExhausted) when the
  // system refuses.
  Buffer take(int64_t bytes);
  void give_back(Buffer buffer) { free_.push_back(std::move(buffer)); }
  int64_t bytes() const { return bytes_; }  // of all buffers

 private:
  void drop_smaller();

  const at::Device device_;
  const bool pinned_;
  HostThreads threads_;
  std::vector<Buffer> free_;
  int64_t bytes_ = 0;
};

// Tensors of one block and micro-batch in host memory.
class OffloadedTensors {
 public:
  explicit OffloadedTensors(std::shared_ptr<HostBufferPool> pool) : pool_(std::move(pool)) {}
  ~OffloadedTensors();
  OffloadedTensors(const OffloadedTensors&) = delete;
  OffloadedTensors& operator=(const OffloadedTensors&) = delete;

 private:
  friend class ActivationOffload;
  struct Entry {
    HostBufferPool::Buffer buffer;
    size_t place = 0;   // as send() was told
    at::Tensor host;    // view of the buffer, in the tensor's shape and order in memory
    at::Tensor device;  // being fetched
    Marker written;     // end of the copy to the host
    bool requires_grad = false;
  };
  std::shared_ptr<HostBufferPool> pool_;
  std::vector<Entry> entries_;
  bool is_fetched_ = false;
  Marker fetched_;
};

// [Note: offloaded activations]
// A recomputed block's input leaves for the host while the block's forward reads it, and kept
// tensors after that forward. Copies run on a stream of their own. The device's memory is freed
// when the compute stream has waited for the copy, one block later: so it lies in one order with
// all other work on that memory. Backward of a block starts the copies for the one before it, which
// overlap. The host waits for nothing. Buffers go round: a later copy into one waits for the last
// copy out of it. On CPUs the same calls copy at once.
class ActivationOffload {
 public:
  ActivationOffload(at::Device device, bool pin_memory);
  ~ActivationOffload();  // waits for copies in flight
  ActivationOffload(const ActivationOffload&) = delete;
  ActivationOffload& operator=(const ActivationOffload&) = delete;

  std::shared_ptr<OffloadedTensors> make() { return std::make_shared<OffloadedTensors>(pool_); }
  // Whether send() takes it: floating point, with elements.
  static bool is_movable(const at::Tensor& tensor);
  // Starts the copy of a tensor, which must not be written from here on; the caller drops it.
  // place: what take() calls it.
  void send(OffloadedTensors& to, size_t place, const at::Tensor& tensor);
  // Copies in flight, which hold device memory.
  size_t in_flight() const { return in_flight_.size(); }
  // Makes the compute stream wait for the oldest copies, and frees their device memory.
  void settle(size_t count);
  // Starts the copies back. No effect if they have been started.
  void fetch(OffloadedTensors& from);
  // The tensors by place, for use on the compute stream.
  std::vector<std::pair<size_t, at::Tensor>> take(OffloadedTensors& from);

  void begin_step() { to_host_bytes_ = to_device_bytes_ = 0; }
  // Forgets copies in flight. The device must be idle.
  void drop() { in_flight_.clear(); }
  void add_memory(StrategyMemory& memory) const;
  void add_traffic(OffloadReport& report) const;

 private:
  struct Flight {
    at::Tensor tensor;
    Marker written;
  };
  const at::Device device_;
  const bool pinned_;
  const std::shared_ptr<HostBufferPool> pool_;
  const c10::Stream to_host_, to_device_;
  std::deque<Flight> in_flight_;
  int64_t to_host_bytes_ = 0, to_device_bytes_ = 0;  // of this step
};

}  // namespace tessera
