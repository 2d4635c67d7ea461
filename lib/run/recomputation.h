// SPDX-License-Identifier: MIT
#pragma once
// --activation_memory of a run: which blocks run again in backward, and what is said of it.
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lib/plan/recomputation.h"
#include "lib/run/memory_advice.h"
#include "lib/run/prepare.h"

namespace tessera::programs {

// The largest micro-batch that the data can give.
BatchShape largest_shape(const Prepared& run, const TrainOptions& options);
// Without what its driver has taken before anybody asks what is free.
Card card_in_use(at::Device device);

// By stage; nothing where `asked`, as --activation_memory, is "". largest: of the micro-batches.
// available: what a rank has; of a host its share. Throws Error(kInvalidArgument) for a model
// whose memory cannot be planned.
std::vector<StageRecomputation> choose_recomputation(const std::string& asked, LayoutPlan plan,
                                                     const BatchShape& largest, at::Device device,
                                                     const AvailableMemory& available);
// The same of a run whose layout is `config`. Rows are taken to be as long as the longest ones.
std::vector<StageRecomputation> choose_recomputation(const Prepared& run,
                                                     const ParallelConfig& config,
                                                     at::Device device, int64_t ranks,
                                                     const AvailableMemory& available);

// What is missing where a stage does not fit; "" where all do.
std::string missing_activation_memory(const std::vector<StageRecomputation>& stages,
                                      const std::string& asked);

// Throws Error(kResourceExhausted), with what would help, where a stage does not fit.
void require_fitting(const Prepared& run, const std::vector<StageRecomputation>& stages,
                     int64_t ranks, bool on_gpu);

// "5 of 24 blocks", or "5 of 12, 0 of 12 blocks" of stages.
std::string counts_text(const std::vector<StageRecomputation>& stages);

// What a step computes beyond one in which nothing runs again, as a share of that. share: of
// recomputed_share().
double more_operations(double share, bool trains_adapters);

}  // namespace tessera::programs
