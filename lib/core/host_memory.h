// SPDX-License-Identifier: MIT
#pragma once
// Large blocks of host memory: how much there is, and page-locked tensors.
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

#include "lib/core/host_threads.h"

namespace tessera {

// Bytes that this process can still get without swapping: what the system calls available, or less
// where a control group says so.
int64_t available_host_memory();

// A 1-D tensor of zeros in host memory, touched first by the given threads and near their cores.
// pinned: page-locked for transfers to and from GPUs, exactly this many bytes (LibTorch's own
// pinned memory rounds up to a power of two). Throws Error(kResourceExhausted) when the system
// refuses.
at::Tensor host_zeros(int64_t numel, at::ScalarType dtype, bool pinned, HostThreads& threads);

// The same for transfers to and from the device, page-locked if `pinned` and that is a GPU. Beside
// meta tensors it has no memory either, and counts as the host's.
at::Tensor host_zeros_beside(at::Device device, int64_t numel, at::ScalarType dtype, bool pinned,
                             HostThreads& threads);

// Page-locked memory of this process: of host_zeros(), and what LibTorch's allocator holds. The
// peak is that of the one plus that of the other.
struct PinnedMemory {
  int64_t bytes = 0, peak_bytes = 0;
};
PinnedMemory pinned_memory();

}  // namespace tessera
