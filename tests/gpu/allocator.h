// SPDX-License-Identifier: MIT
#pragma once
// LibTorch's allocator of the first GPU, for tests. Needs no CUDA header, so that builds without a
// toolkit compile the tests too.
#include <c10/core/CachingDeviceAllocator.h>

namespace tessera::test {

inline c10::DeviceAllocator& gpu_allocator() { return *c10::getDeviceAllocator(at::kCUDA); }
inline c10::CachingDeviceAllocator::DeviceStats gpu_memory() {
  return gpu_allocator().getDeviceStats(0);
}
// Limits the allocator to this share of a GPU's memory. Defined in builds with CUDA.
void limit_gpu_memory(double share, at::DeviceIndex gpu = 0);

}  // namespace tessera::test
