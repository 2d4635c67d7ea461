// SPDX-License-Identifier: MIT
#pragma once
// The memory of a run, planned by dry runs before it begins.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/plan/memory_plan.h"
#include "lib/plan/recomputation.h"
#include "lib/run/memory_advice.h"
#include "lib/run/prepare.h"

namespace tessera::programs {

// recomputed: what choose_recomputation() chose, as ParallelConfig::recomputed_blocks.
class RunPlanner {
 public:
  struct CheckedLayout {
    PlannedLayout layout;
    std::string need;  // as memory_need() says
  };

  virtual ~RunPlanner() = default;

  // With --activation_memory: blocks to recompute, by stage. config: the layout that
  // will run; available: the least that any rank has, of a host its share. Throws
  // Error(kResourceExhausted) where no choice is small enough.
  virtual std::vector<StageRecomputation> choose_recomputation(
      const ParallelConfig& config, at::Device device, int64_t ranks,
      const AvailableMemory& available) const = 0;
  // With --offload_keep_on_gpu auto: OffloadConfig::device_bytes; of the same arguments.
  virtual int64_t choose_device_bytes(const ParallelConfig& config, at::Device device,
                                      int64_t ranks, const AvailableMemory& available) const = 0;
  // The plan to compare memory with, of a run that fits into the least that any rank has; nothing
  // where this layout has no plan. Throws Error(kResourceExhausted).
  virtual std::optional<CheckedLayout> check_memory(
      at::Device device, int64_t ranks, int64_t ranks_on_host, const AvailableMemory& available,
      const std::vector<int64_t>& recomputed) const = 0;
  virtual std::string memory_need(int64_t ranks, bool on_gpu,
                                  const std::vector<int64_t>& recomputed) const = 0;
  // reason: the allocator's message.
  virtual std::string memory_advice(int64_t ranks, const std::string& reason, bool on_gpu,
                                    const std::vector<int64_t>& recomputed) const = 0;
};

// run outlives it.
std::unique_ptr<const RunPlanner> language_planner(const Prepared& run);

}  // namespace tessera::programs
