// SPDX-License-Identifier: MIT
#pragma once
// Advice for runs that do not fit in memory.
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/run/prepare.h"

namespace tessera::programs {

// "One rank needs about ...: parameters ..." by plan, or that there is no plan. recomputed:
// ParallelConfig::recomputed_blocks, as in the functions below.
std::string memory_need(const Prepared& run, int64_t ranks, bool on_gpu,
                        const std::vector<int64_t>& recomputed = {});

// Available bytes for this process by the kernel and the GPU's driver.
struct AvailableMemory {
  int64_t host = 0, device = 0;  // 0 on the CPU
};
AvailableMemory available_memory(at::Device device);

// Throws Error(kResourceExhausted) when a step's tensors exceed the available memory, before the
// kernel kills ranks one by one. Uses a lower bound for the largest micro-batch. Returns
// memory_need()'s text; empty without a plan.
std::optional<std::string> check_memory(const Prepared& run, at::Device device, int64_t ranks,
                                        int64_t ranks_on_host, const AvailableMemory& available,
                                        const std::vector<int64_t>& recomputed = {});

// Advice after running out of memory: the need, and the three flags that save most, with the bytes
// of each. reason: the allocator's message.
std::string memory_advice(const Prepared& run, int64_t ranks, const std::string& reason,
                          bool on_gpu, const std::vector<int64_t>& recomputed = {});

// Advice for a run without a plan.
std::string advice_without_plan(const std::string& reason);

std::string mebibytes(double bytes);  // "123 MiB"

}  // namespace tessera::programs
