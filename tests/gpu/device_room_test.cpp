#include "tessera/core/device_room.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "tessera/core/device.h"
#include "tests/gpu/gpu.h"

using namespace tessera;

namespace {

int64_t reserved_bytes() {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].current;
}

}  // namespace

TEST_CASE("room on the GPU is no more than the allocator may take") {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu(at::kCUDA, 0);
  at::empty({1}, at::TensorOptions(gpu));  // the allocator's first knows the device
  c10::cuda::CUDACachingAllocator::emptyCache();
  constexpr int64_t kAllowed = int64_t{512} << 20;
  const int64_t before = reserved_bytes();
  const auto total = static_cast<double>(device_memory(gpu).second);
  c10::cuda::CUDACachingAllocator::setMemoryFraction(static_cast<double>(before + kAllowed) / total,
                                                     0);
  make_device_room(gpu, 16 * kAllowed);
  const int64_t made = reserved_bytes() - before;
  c10::cuda::CUDACachingAllocator::setMemoryFraction(1, 0);
  CHECK(made > kAllowed / 4);
  CHECK(made <= kAllowed);
}
