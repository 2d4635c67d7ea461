// SPDX-License-Identifier: MIT
#pragma once
// Dispatch from a run-time dtype to a template argument, and once-per-device set-up of a kernel.
#include <atomic>
#include <utility>

#include "lib/ops/cuda/launch.h"
#include "lib/ops/cuda/vector.cuh"

namespace tessera::ops::cuda {

template <typename T>
struct Tag {
  using type = T;
};

template <typename Function>
void with_16_bit_type(Type type, Function&& function) {
  if (type == Type::kHalf) {
    function(Tag<Half>{});
  } else {
    function(Tag<Bfloat16>{});
  }
}

template <typename Function>
void with_type(Type type, Function&& function) {
  if (type == Type::kFloat) {
    function(Tag<float>{});
  } else {
    with_16_bit_type(type, std::forward<Function>(function));
  }
}

// Raises a kernel's shared memory limit; `bytes` is always the same for a kernel.
template <auto* kKernel>
void allow_shared_memory(int bytes) {
  static std::atomic<uint64_t> allowed{0};
  int device = 0;
  cudaGetDevice(&device);
  if ((allowed >> device % 64 & 1) != 0) return;
  cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  allowed |= uint64_t(1) << device % 64;
}

}  // namespace tessera::ops::cuda
