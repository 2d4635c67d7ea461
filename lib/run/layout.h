// SPDX-License-Identifier: MIT
#pragma once
// Layout of a run with known model and data.
#include <string>
#include <vector>

#include "lib/plan/memory_plan.h"
#include "lib/run/prepare.h"
#include "lib/settings/layout.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"

namespace tessera::programs {

// Stages are balanced for this run's rows: with --pipeline_balance time, and as a first guess
// before a measurement.
ParallelConfig parallel_config(const Prepared& run, const TrainOptions& options);

// Until --fp8 auto is measured: what takes the most memory.
ParallelConfig before_fp8_choice(ParallelConfig config);

// Without activations, whose sizes are known only with the batches.
PlannedLayout planned_layout(const ModelSpec& model, const ParallelConfig& config,
                             const TrainOptions& options, int world_size);
PlannedLayout planned_layout(const Prepared& run, const TrainOptions& options, int world_size);

// Shape of a micro-batch in which every row has `length` tokens, all supervised.
BatchShape batch_shape(int64_t rows, int64_t length, bool packed);
BatchShape batch_shape(const Prepared& run, const TrainOptions& options, int64_t length);

// Evaluation and generation as the options ask. evaluated: tokens per evaluation row.
BetweenSteps between_steps(const Prepared& run, const TrainOptions& options, int64_t evaluated);

// memory_plan(). Empty, with one warning, for blocks that cannot be built or run on meta tensors;
// such a run continues without a plan.
std::vector<MemoryPlan> plan_or_warn(const PlannedLayout& layout, const BatchShape& batch,
                                     const Card& card, const BetweenSteps& between = {});

// Bytes sent by this rank over all axes and the strategy's own communicators.
int64_t bytes_sent(const DeviceMesh& mesh, const Strategy& strategy);

}  // namespace tessera::programs
