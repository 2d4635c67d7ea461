// SPDX-License-Identifier: MIT
#include "lib/run/device_memory.h"

#include "lib/metrics/resource_sampler.h"
#include "tessera/core/device.h"

namespace tessera::programs {

DeviceMemory device_memory(at::Device device) {
  if (device.is_cpu()) return {};
  const MemoryUse use = memory_use(device);
  return {use.peak_allocated_bytes, use.peak_reserved_bytes};
}

void reset_device_peak(at::Device device) {
  if (!device.is_cpu()) reset_peak_memory(device);
}

std::string device_name(at::Device device) {
  if (device.is_cpu()) return "cpu";
  const metrics::GpuMonitor monitor;
  const auto index = static_cast<size_t>(device.index());
  return index < monitor.gpus().size() ? monitor.gpus()[index].name : device.str();
}

}  // namespace tessera::programs
