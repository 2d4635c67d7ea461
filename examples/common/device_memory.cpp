#include "examples/common/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "tessera/metrics/resource_sampler.h"

namespace tessera::programs {

DeviceMemory device_memory(at::Device device) {
  if (device.is_cpu()) return {};
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {stats.allocated_bytes[kAll].peak, stats.reserved_bytes[kAll].peak};
}

void reset_device_peak(at::Device device) {
  if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
}

std::string device_name(at::Device device) {
  if (device.is_cpu()) return "cpu";
  const metrics::GpuMonitor monitor;
  const auto index = static_cast<size_t>(device.index());
  return index < monitor.gpus().size() ? monitor.gpus()[index].name : device.str();
}

}  // namespace tessera::programs
