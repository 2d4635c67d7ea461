// SPDX-License-Identifier: MIT
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>

namespace tessera {

// Lets LibTorch's allocator hold one more block of so many bytes of a GPU, from which later tensors
// are cut; where it may not have so many, of half as many, and so on. It counts as reserved, not as
// allocated: what memory_use() says of peaks is as before, but LibTorch's own peaks begin anew.
void make_device_room(at::Device device, int64_t bytes);

// What work allocated of a GPU at most beyond what there was, in bytes.
int64_t most_allocated(at::Device device, const std::function<void()>& work);
// Work that has memory of its own runs now: memory_use() knows its peak, so many bytes beyond what
// there is.
void count_as_peak(at::Device device, int64_t bytes);

// What to make room for after two steps of many: bytes that the largest may need, if one took
// `bytes` for a micro-batch of `tokens` and the next one has `next_tokens`, both of `rows` rows.
// The fewer rows there are, the more do tokens differ, and either step may be a small one.
int64_t room_for_steps(int64_t bytes, int64_t tokens, int64_t next_tokens, int64_t rows);

}  // namespace tessera
