// SPDX-License-Identifier: MIT
#include <c10/cuda/CUDACachingAllocator.h>

#include "tests/gpu/allocator.h"

namespace tessera::test {

void limit_gpu_memory(double share, at::DeviceIndex gpu) {
  c10::cuda::CUDACachingAllocator::setMemoryFraction(share, gpu);
}

}  // namespace tessera::test
