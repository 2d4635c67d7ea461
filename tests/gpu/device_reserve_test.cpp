// SPDX-License-Identifier: MIT
#include "lib/core/device_reserve.h"

#include <ATen/ATen.h>

#include "tessera/core/device.h"
#include "tests/gpu/allocator.h"
#include "tests/gpu/gpu.h"

using namespace tessera;

TEST_CASE("room on the GPU is no more than the allocator may take") {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu(at::kCUDA, 0);
  at::empty({1}, at::TensorOptions(gpu));  // initialises the device
  test::gpu_allocator().emptyCache();
  constexpr int64_t kAllowed = int64_t{512} << 20;
  const int64_t before = memory_use(gpu).reserved_bytes;
  const auto total = static_cast<double>(device_memory(gpu).second);
  test::limit_gpu_memory(static_cast<double>(before + kAllowed) / total);
  reserve_device_memory(gpu, 16 * kAllowed);
  const int64_t made = memory_use(gpu).reserved_bytes - before;
  test::limit_gpu_memory(1);
  CHECK(made > kAllowed / 4);
  CHECK(made <= kAllowed);
}
