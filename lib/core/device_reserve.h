// SPDX-License-Identifier: MIT
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>

namespace tessera {

// Makes LibTorch's allocator reserve one more block of `bytes` of a GPU, from which later tensors
// are cut. Halves the size until it fits. The block counts as reserved, not as allocated.
// memory_use() keeps its peaks, but LibTorch's own peaks are reset.
void reserve_device_memory(at::Device device, int64_t bytes);

// Peak bytes that `work` allocates on a GPU beyond those allocated before.
int64_t peak_allocated(at::Device device, const std::function<void()>& work);
// For work whose memory the allocator does not count: raises memory_use()'s peak to the current
// bytes plus `bytes`.
void count_as_peak(at::Device device, int64_t bytes);

// Bytes to reserve after two steps, for the largest step to come. `bytes`: use of one step with a
// micro-batch of `tokens`; the next one has `next_tokens`, both have `rows` rows. Fewer rows vary
// more in tokens, and either step may be a small one.
int64_t reserve_for_steps(int64_t bytes, int64_t tokens, int64_t next_tokens, int64_t rows);

}  // namespace tessera
