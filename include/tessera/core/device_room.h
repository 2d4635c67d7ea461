#pragma once
#include <c10/core/Device.h>

#include <cstdint>

namespace tessera {

// Lets LibTorch's allocator hold one more block of so many bytes of a GPU, from which later tensors
// are cut. It counts as reserved, not as allocated: what memory_use() says of peaks is as before,
// but LibTorch's own peaks begin anew.
void make_device_room(at::Device device, int64_t bytes);

}  // namespace tessera
