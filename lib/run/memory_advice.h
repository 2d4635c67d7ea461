// SPDX-License-Identifier: MIT
#pragma once
// What to tell a user whose run does not fit.
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/run/prepare.h"

namespace tessera::programs {

// "One rank needs about ...: parameters ...", by plan; or that there is none. recomputed:
// ParallelConfig::recomputed_blocks, as of the others here.
std::string memory_need(const Prepared& run, int64_t ranks, bool on_gpu,
                        const std::vector<int64_t>& recomputed = {});

// Bytes that the kernel, and the GPU's driver, call available to this process.
struct AvailableMemory {
  int64_t host = 0, device = 0;  // 0 on the CPU
};
AvailableMemory available_memory(at::Device device);

// Throws Error(kResourceExhausted) when the tensors of a step of this host's ranks exceed what is
// available; without this the kernel would kill the ranks one by one. Of micro-batches only what
// the largest has at least is known. Returns what memory_need() says; nothing without a plan.
std::optional<std::string> check_memory(const Prepared& run, at::Device device, int64_t ranks,
                                        int64_t ranks_on_host, const AvailableMemory& available,
                                        const std::vector<int64_t>& recomputed = {});

// The same after the fact, and the three flags that would save most, with the bytes each
// saves. reason is the allocator's own message.
std::string memory_advice(const Prepared& run, int64_t ranks, const std::string& reason,
                          bool on_gpu, const std::vector<int64_t>& recomputed = {});

// The same of a run that has no plan.
std::string advice_without_plan(const std::string& reason);

std::string mebibytes(double bytes);  // "123 MiB"

}  // namespace tessera::programs
