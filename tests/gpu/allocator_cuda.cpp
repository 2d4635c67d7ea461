#include <c10/cuda/CUDACachingAllocator.h>

#include "tests/gpu/allocator.h"

namespace tessera::test {

void limit_gpu_memory(double share) { c10::cuda::CUDACachingAllocator::setMemoryFraction(share, 0); }

}  // namespace tessera::test
