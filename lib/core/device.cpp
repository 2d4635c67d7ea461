// SPDX-License-Identifier: MIT
#include "tessera/core/device.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "lib/core/clock.h"
#include "lib/core/device_reserve.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera {
namespace {

c10::impl::VirtualGuardImpl guard_of(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

// False for CPU and meta devices, which execute in call order.
bool has_streams(at::Device device) { return !device.is_cpu() && !device.is_meta(); }

c10::DeviceAllocator& allocator_of(at::Device device) {
  check(!device.is_cpu(), ErrorCode::kInvalidArgument,
        "memory of the CPU is not counted by device; use HostMemoryCounter");
  return *c10::getDeviceAllocator(device.type());
}

// Free and total bytes; the allocators of LibTorch 2.9 have no such call.
template <typename Allocator>
std::pair<size_t, size_t> memory_info(Allocator& allocator, at::Device device) {
  if constexpr (requires { allocator.getMemoryInfo(device.index()); }) {
    return allocator.getMemoryInfo(device.index());
  } else {
    fail(ErrorCode::kInvalidArgument, "this LibTorch does not say how much memory ", device.str(),
         " has; build tessera for GPUs with LibTorch 2.11");
  }
}

}  // namespace

int gpu_count() {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return 0;
  return guard_of(at::Device(c10::kCUDA)).deviceCount();
}

void set_current_device(at::Device device) {
  if (has_streams(device)) guard_of(device).setDevice(device);
}

void synchronize_device(at::Device device) {
  if (has_streams(device)) guard_of(device).synchronizeDevice(device.index());
}

c10::Stream current_stream(at::Device device) { return guard_of(device).getStream(device); }

c10::Stream side_stream(at::Device device, bool high_priority) {
  if (!has_streams(device)) return current_stream(device);
  return guard_of(device).getStreamFromGlobalPool(device, high_priority);
}

StreamScope::StreamScope(c10::Stream stream)
    : previous_(guard_of(stream.device()).exchangeStream(stream)) {}
StreamScope::~StreamScope() { guard_of(previous_.device()).exchangeStream(previous_); }

void Marker::record(c10::Stream stream) {
  if (!has_streams(stream.device())) return;
  if (event_ == nullptr) event_ = std::make_unique<c10::Event>(stream.device_type());
  event_->record(stream);
}

void Marker::block(c10::Stream stream) const {
  if (event_ != nullptr) event_->block(stream);
}

void Marker::synchronize() const {
  if (event_ != nullptr) event_->synchronize();
}

bool Marker::done() const { return event_ == nullptr || event_->query(); }

void StreamTimer::mark(c10::Stream stream, Point& point) {
  if (!has_streams(stream.device())) {
    point.host_s = now_s();
    return;
  }
  if (point.event == nullptr) {
    point.event =
        std::make_unique<c10::Event>(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT);
  }
  point.event->record(stream);
}

double StreamTimer::seconds() const {
  if (begin_.event != nullptr && end_.event != nullptr) {
    end_.event->synchronize();
    return begin_.event->elapsedTime(*end_.event) / 1e3;
  }
  return begin_.host_s < 0 || end_.host_s < 0 ? 0 : end_.host_s - begin_.host_s;
}

namespace {

// Peaks from before the last reset by reserve_device_memory(), by device.
struct PeaksBefore {
  std::atomic<int64_t> allocated_bytes = 0, reserved_bytes = 0;
};
PeaksBefore& peaks_before(at::Device device) {
  static std::array<PeaksBefore, 128> peaks;  // the range of c10::DeviceIndex
  return peaks.at(static_cast<size_t>(device.index()));
}

}  // namespace

MemoryUse memory_use(at::Device device) {
  const auto stats = allocator_of(device).getDeviceStats(device.index());
  const auto total = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {.allocated_bytes = stats.allocated_bytes[total].current,
          .peak_allocated_bytes = std::max(stats.allocated_bytes[total].peak,
                                           peaks_before(device).allocated_bytes.load()),
          .reserved_bytes = stats.reserved_bytes[total].current,
          .peak_reserved_bytes = std::max(stats.reserved_bytes[total].peak,
                                          peaks_before(device).reserved_bytes.load()),
          .allocations = stats.num_device_alloc};
}

void reset_peak_memory(at::Device device) {
  allocator_of(device).resetPeakStats(device.index());
  peaks_before(device).allocated_bytes = 0;
  peaks_before(device).reserved_bytes = 0;
}

namespace {

// Saves the peaks and resets LibTorch's own.
void keep_peaks(at::Device device) {
  const MemoryUse use = memory_use(device);
  peaks_before(device).allocated_bytes = use.peak_allocated_bytes;
  peaks_before(device).reserved_bytes = use.peak_reserved_bytes;
  allocator_of(device).resetPeakStats(device.index());
}

}  // namespace

int64_t peak_allocated(at::Device device, const std::function<void()>& work) {
  keep_peaks(device);
  const int64_t before = memory_use(device).allocated_bytes;
  work();
  const auto stats = allocator_of(device).getDeviceStats(device.index());
  const auto total = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return stats.allocated_bytes[total].peak - before;
}

void count_as_peak(at::Device device, int64_t bytes) {
  std::atomic<int64_t>& peak = peaks_before(device).allocated_bytes;
  peak = std::max(peak.load(), memory_use(device).allocated_bytes + bytes);
}

void reserve_device_memory(at::Device device, int64_t bytes) {
  PeaksBefore& before = peaks_before(device);
  before.allocated_bytes = memory_use(device).peak_allocated_bytes;
  // The driver may have more free memory than the allocator's limit allows.
  constexpr int64_t kLeast = int64_t{64} << 20;
  for (bool made = false; !made && bytes > 0; bytes = bytes > kLeast ? bytes / 2 : 0) {
    try {
      at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
      made = true;
    } catch (const c10::OutOfMemoryError&) {
    }
  }
  before.reserved_bytes = memory_use(device).peak_reserved_bytes;
  allocator_of(device).resetPeakStats(device.index());
}

int64_t reserve_for_steps(int64_t bytes, int64_t tokens, int64_t next_tokens, int64_t rows) {
  // Four standard deviations of a mean over `rows` rows, whose deviation equals their mean.
  const double more = std::min(4 / std::sqrt(static_cast<double>(rows)), 1.5);
  const double larger = static_cast<double>(std::max(tokens, next_tokens)) /
                        static_cast<double>(std::max<int64_t>(tokens, 1));
  return static_cast<int64_t>(static_cast<double>(bytes) * larger * (1 + more));
}

std::pair<int64_t, int64_t> device_memory(at::Device device) {
  const auto [free, total] = memory_info(allocator_of(device), device);
  return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

// LibTorch's CPU allocator reports to the thread's PROFILER_STATE debug info.
struct HostMemoryCounter::State {
  struct Reporter final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
      if (!device.is_cpu()) return;
      use.allocated_bytes += bytes;
      use.peak_allocated_bytes = std::max(use.peak_allocated_bytes, use.allocated_bytes);
      if (bytes > 0) ++use.allocations;
    }
    bool memoryProfilingEnabled() const override { return true; }
    MemoryUse use;
  };
  // LibTorch logs a warning for freed memory that it did not see allocated, which is harmless here.
  // The log can only be silenced by level, so warnings for callers are forwarded by this handler.
  struct Warnings final : c10::WarningHandler {
    void process(const c10::Warning& warning) override {
      log(LogLevel::kWarning, "LibTorch: ", warning.msg());
    }
  };
  State() {
    static const bool quiet = [] {  // one log level for the process
      const bool told = std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr;
      if (!told) FLAGS_caffe2_log_level = std::max<int>(FLAGS_caffe2_log_level, c10::GLOG_ERROR);
      return !told;
    }();
    if (quiet) handler.emplace(&warnings);
  }
  Warnings warnings;
  std::optional<c10::WarningUtils::WarningHandlerGuard> handler;
  std::shared_ptr<Reporter> reporter = std::make_shared<Reporter>();
  c10::DebugInfoGuard guard{c10::DebugInfoKind::PROFILER_STATE, reporter};
};

HostMemoryCounter::HostMemoryCounter() : state_(std::make_unique<State>()) {}
HostMemoryCounter::~HostMemoryCounter() = default;

MemoryUse HostMemoryCounter::use() const {
  MemoryUse use = state_->reporter->use;
  use.reserved_bytes = use.allocated_bytes;
  use.peak_reserved_bytes = use.peak_allocated_bytes;
  return use;
}

void HostMemoryCounter::reset_peak() {
  MemoryUse& use = state_->reporter->use;
  use.peak_allocated_bytes = use.allocated_bytes;
}

}  // namespace tessera
