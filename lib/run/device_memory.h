// SPDX-License-Identifier: MIT
#pragma once
// Statistics of LibTorch's allocator for a device; empty for the CPU.
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::programs {

struct DeviceMemory {
  std::optional<int64_t> allocated_peak_bytes, reserved_peak_bytes;  // since reset_device_peak()
};
DeviceMemory device_memory(at::Device device);
void reset_device_peak(at::Device device);

// "NVIDIA H200" or "cpu".
std::string device_name(at::Device device);

}  // namespace tessera::programs
