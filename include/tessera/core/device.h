// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Device-independent streams, events and memory counters. On the CPU streams and events do
/// nothing.
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/core/not_copied.h"

namespace tessera {

/// GPUs visible to this process; 0 in builds without CUDA.
int gpu_count();
/// The device's name: "NVIDIA H200", or "CPU".
std::string device_name(at::Device device);
/// Makes device the current one of this thread; no effect on the CPU.
void set_current_device(at::Device device);
/// Blocks the host until the device is idle.
void synchronize_device(at::Device device);

c10::Stream current_stream(
    at::Device device);  ///< this thread's current stream; the CPU has one stream
/// A stream beside the current one, from the device's pool. On the CPU: its only stream.
c10::Stream side_stream(at::Device device, bool high_priority = false);

/// Makes stream the current one of this thread while it lives.
class StreamScope : NotCopied {
 public:
  explicit StreamScope(c10::Stream stream);  ///< makes the stream current
  ~StreamScope();

 private:
  c10::Stream previous_;
};

/// An event on a stream for which other streams can wait. Created at the first record; no effect on
/// the CPU.
class Marker {
 public:
  ///@{
  /// Records the event on the stream, or on the device's current one.
  void record(c10::Stream stream);
  void record(at::Device device) { record(current_stream(device)); }
  ///@}
  void block(
      c10::Stream stream) const;  ///< stream waits for the last record; nothing before the first
  /// Makes the device's current stream wait for the last record.
  void block(at::Device device) const { block(current_stream(device)); }
  void synchronize() const;  ///< makes the host wait
  bool done() const;         ///< whether the event has happened; does not wait

 private:
  std::unique_ptr<c10::Event> event_;
};

/// Seconds between two points on a GPU's stream, or on the host's clock for the CPU; read late.
class StreamTimer {
 public:
  void start(c10::Stream stream) { mark(stream, begin_); }  ///< sets the first point
  void stop(c10::Stream stream) { mark(stream, end_); }     ///< sets the second point
  /// Waits for the second point; 0 unless both were set.
  double seconds() const;

 private:
  struct Point {
    std::unique_ptr<c10::Event> event;
    double host_s = -1;
  };
  static void mark(c10::Stream stream, Point& point);
  Point begin_, end_;
};

/// Memory use as the caching allocator counts it. Reserved bytes include its cache. allocations
/// counts cudaMalloc calls; on the CPU, all allocations.
struct MemoryUse {
  int64_t allocated_bytes = 0;       ///< bytes in use by tensors
  int64_t peak_allocated_bytes = 0;  ///< the most since the peak was reset
  int64_t reserved_bytes = 0;        ///< bytes held by the allocator
  int64_t peak_reserved_bytes = 0;   ///< the most since the peak was reset
  int64_t allocations = 0;           ///< requests that the cache could not serve
};
/// This process's memory use on a GPU. Throws Error(kInvalidArgument) for the CPU; see
/// HostMemoryCounter.
MemoryUse memory_use(at::Device device);
/// Resets the device's peaks to the current use; no effect on the CPU.
void reset_peak_memory(at::Device device);
/// Free and total bytes of the device.
std::pair<int64_t, int64_t> device_memory(at::Device device);

/// Counts the CPU tensors that its thread allocates and frees, so each in-process rank sees its
/// own. Use it only on the thread that made it; frees by other threads are not seen. Counters nest;
/// only the innermost counts.
class HostMemoryCounter : NotCopied {
 public:
  HostMemoryCounter();
  ~HostMemoryCounter();
  MemoryUse use() const;  ///< since the counter was made
  void reset_peak();      ///< sets the peak to the current use

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
