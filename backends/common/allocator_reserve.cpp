// SPDX-License-Identifier: MIT
#include "backends/common/allocator_reserve.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>

#include "lib/core/device_reserve.h"
#include "tessera/core/device.h"

namespace tessera {

void AllocatorReserve::make_for(std::span<const MicroBatch> micro_batches) {
  if (!device_.is_cuda() || made_) return;
  int64_t tokens = 0, rows = 1;
  for (const MicroBatch& batch : micro_batches) {
    tokens = std::max(tokens, batch.token_count);
    rows = std::max(rows, batch.sample_count);
  }
  if (tokens_before_ == 0) tokens_before_ = tokens;
  if (tokens == tokens_before_) return;
  made_ = true;
  const MemoryUse use = memory_use(device_);
  const int64_t of_step = use.peak_allocated_bytes - use.allocated_bytes;
  int64_t room = of_step / 2;
  // Freeing waits for the device, which may wait for messages of stages that wait for this one.
  if (alone_) {
    c10::getDeviceAllocator(device_.type())->emptyCache();
    room = reserve_for_steps(of_step, tokens_before_, tokens, rows);
  }
  reserve_device_memory(device_, std::min(room, device_memory(device_).first / 2));
}

}  // namespace tessera
