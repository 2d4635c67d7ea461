// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Streams, events and memory counters, the same for every device; on the CPU streams and events do
/// nothing.
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/core/not_copied.h"

namespace tessera {

/// GPUs that this process sees; 0 in builds without CUDA.
int gpu_count();
/// "NVIDIA H200", or "CPU".
std::string device_name(at::Device device);
/// Makes device the current one of this thread; nothing on the CPU.
void set_current_device(at::Device device);
/// Blocks the host until everything on the device is done.
void synchronize_device(at::Device device);

c10::Stream current_stream(
    at::Device device);  ///< this thread's current stream; the CPU has one stream
/// A stream beside the current one, from the device's pool. The CPU has only one: it is returned.
c10::Stream side_stream(at::Device device, bool high_priority = false);

/// Makes stream the current one of this thread while it lives.
class StreamScope : NotCopied {
 public:
  explicit StreamScope(c10::Stream stream);  ///< makes the stream current
  ~StreamScope();

 private:
  c10::Stream previous_;
};

/// A point on a stream that other streams can wait for. On the CPU all calls do nothing. Made when
/// first recorded.
class Marker {
 public:
  ///@{
  /// Sets the point behind what the stream, or the device's current one, holds now.
  void record(c10::Stream stream);
  void record(at::Device device) { record(current_stream(device)); }
  ///@}
  void block(
      c10::Stream stream) const;  ///< stream waits for the last record; nothing before the first
  /// The same for the device's current stream.
  void block(at::Device device) const { block(current_stream(device)); }
  void synchronize() const;  ///< the host waits
  bool done() const;         ///< whether the point is passed; asks without waiting

 private:
  std::unique_ptr<c10::Event> event_;
};

/// Seconds between two points on a stream of a GPU, or on the host's clock for the CPU; read late.
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

/// Bytes of tensors; reserved is what the caching allocator holds of the device. allocations counts
/// requests for device memory that the cache could not serve (on the CPU: all allocations).
struct MemoryUse {
  int64_t allocated_bytes = 0;       ///< bytes in use by tensors
  int64_t peak_allocated_bytes = 0;  ///< the most since the peak was reset
  int64_t reserved_bytes = 0;        ///< bytes held by the allocator
  int64_t peak_reserved_bytes = 0;   ///< the most since the peak was reset
  int64_t allocations = 0;           ///< requests that the cache could not serve
};
/// Of a GPU, by this process. Throws Error(kInvalidArgument) for the CPU: count it with
/// HostMemoryCounter.
MemoryUse memory_use(at::Device device);
/// Sets the device's peaks to what is in use now; does nothing on the CPU.
void reset_peak_memory(at::Device device);
/// Free and total bytes of the device.
std::pair<int64_t, int64_t> device_memory(at::Device device);

/// Counts the CPU tensors that the current thread allocates and frees while the counter lives, so
/// that each in-process rank sees its own. Use it on the thread that made it. Frees by other
/// threads are not seen. Counters nest; only the innermost counts.
class HostMemoryCounter : NotCopied {
 public:
  HostMemoryCounter();
  ~HostMemoryCounter();
  MemoryUse use() const;  ///< since the counter was made
  void reset_peak();      ///< the peak becomes what is in use

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
