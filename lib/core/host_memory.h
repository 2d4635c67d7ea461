// SPDX-License-Identifier: MIT
#pragma once
// Large blocks of host memory: available bytes, and page-locked tensors.
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

#include "lib/core/host_threads.h"

namespace tessera {

// Bytes this process can still get without swapping: the system's available memory, or a control
// group's smaller limit.
int64_t available_host_memory();

// A 1-D tensor of zeros in host memory, first touched by the given threads near their cores.
// pinned: page-locked for GPU transfers, with exactly this size (LibTorch's pinned allocator rounds
// up to a power of two). Throws Error(kResourceExhausted) when the system refuses.
at::Tensor host_zeros(int64_t numel, at::ScalarType dtype, bool pinned, HostThreads& threads);

// As host_zeros(), page-locked if `pinned` and `device` is a GPU. For a meta device the tensor is
// meta too, and counts as host memory.
at::Tensor host_zeros_beside(at::Device device, int64_t numel, at::ScalarType dtype, bool pinned,
                             HostThreads& threads);

// Page-locked memory of this process: host_zeros() and LibTorch's allocator. The peak is the sum of
// both peaks.
struct PinnedMemory {
  int64_t bytes = 0, peak_bytes = 0;
};
PinnedMemory pinned_memory();

}  // namespace tessera
