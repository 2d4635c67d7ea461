// SPDX-License-Identifier: MIT
#pragma once
// --activation_memory: which blocks are recomputed in backward, and messages about it.
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lib/plan/recomputation.h"
#include "lib/run/memory_advice.h"
#include "lib/run/prepare.h"

namespace tessera::programs {

// Shape of the largest micro-batch that the data can give.
BatchShape largest_shape(const Prepared& run, const TrainOptions& options);
// The card without its driver's own memory, since free memory excludes that already.
Card card_in_use(at::Device device);

// The choice by stage; empty if `asked` (--activation_memory) is "". largest: the largest
// micro-batch. available: memory of a rank; for the host its share. Throws Error(kInvalidArgument)
// for a model without a memory plan.
std::vector<StageRecomputation> choose_recomputation(const std::string& asked, PlannedLayout layout,
                                                     const BatchShape& largest, at::Device device,
                                                     const AvailableMemory& available);
// As above for a run with the layout `config`. All rows count as long as the longest.
std::vector<StageRecomputation> choose_recomputation(const Prepared& run,
                                                     const ParallelConfig& config,
                                                     at::Device device, int64_t ranks,
                                                     const AvailableMemory& available);

// Message about a stage that does not fit; "" if all fit.
std::string missing_activation_memory(const std::vector<StageRecomputation>& stages,
                                      const std::string& asked);

// Throws Error(kResourceExhausted) with advice if a stage does not fit.
void require_fitting(const Prepared& run, const std::vector<StageRecomputation>& stages,
                     int64_t ranks, bool on_gpu);

// "5 of 24 blocks", or "5 of 12, 0 of 12 blocks" for stages.
std::string counts_text(const std::vector<StageRecomputation>& stages);

// Extra operations of recomputation as a share of a step without it. share: from
// recomputed_share().
double more_operations(double share, bool trains_adapters);

}  // namespace tessera::programs
