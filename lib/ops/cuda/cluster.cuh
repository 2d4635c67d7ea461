// SPDX-License-Identifier: MIT
#pragma once
// Thread block clusters and bulk copies in shared memory (compute capability 9 and later): one
// function per instruction.
#include <cstdint>

namespace tessera::ops::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return uint32_t(__cvta_generic_to_shared(pointer));
}

// Address of the same variable in another block of the cluster.
__device__ __forceinline__ uint32_t shared_address(const void* pointer, int rank) {
  uint32_t result;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(result)
               : "r"(shared_address(pointer)), "r"(rank));
  return result;
}

// An mbarrier in shared memory. Its phase ends when one thread of the block has arrived and all
// bytes it expects are there.
struct Barrier {
  uint64_t state;

  __device__ __forceinline__ void initialize() {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(this)) : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  __device__ __forceinline__ void arrive_expecting(uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
        "r"(bytes)
        : "memory");
  }
  // Waits for the end of the phase, counted from 0.
  __device__ __forceinline__ void wait(uint32_t phase) {
    uint32_t over;
    do {
      asm volatile(
          "{\n .reg .pred p;\n"
          " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          " selp.u32 %0, 1, 0, p;\n}"
          : "=r"(over)
          : "r"(shared_address(this)), "r"(phase & 1)
          : "memory");
    } while (over == 0);
  }
};

// Orders this thread's accesses to shared memory before later bulk copies.
__device__ __forceinline__ void fence_bulk_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Makes initialised barriers visible to bulk copies and, after synchronize_cluster(), to the
// cluster's other blocks.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  fence_bulk_copies();
}

__device__ __forceinline__ void synchronize_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Copies from device to shared memory, multiples of 16 bytes, counted by `filled`.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, uint32_t bytes,
                                          Barrier& filled) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&filled))
      : "memory");
}

// Stores into `slot` of block `rank`, whose barrier counts the bytes.
__device__ __forceinline__ void store_async(const float2& value, const float2& slot,
                                            const Barrier& filled, int rank) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
          shared_address(&slot, rank)),
      "f"(value.x), "f"(value.y), "r"(shared_address(&filled, rank))
      : "memory");
}

}  // namespace tessera::ops::cuda
