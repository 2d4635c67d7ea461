// SPDX-License-Identifier: MIT
#pragma once
// The layout of a run whose model and data are known.
#include <string>
#include <vector>

#include "lib/plan/memory_plan.h"
#include "lib/run/prepare.h"
#include "lib/settings/layout.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"

namespace tessera::programs {

// With --pipeline_balance time, and as a guess of what is to be measured: stages balanced for these
// rows.
ParallelConfig parallel_config(const Prepared& run, const TrainOptions& options);

// Without activations: their sizes are known when batches are.
LayoutPlan layout_plan(const ModelSpec& model, const ParallelConfig& config,
                       const TrainOptions& options, int world_size);
LayoutPlan layout_plan(const Prepared& run, const TrainOptions& options, int world_size);

// Of a micro-batch whose rows all have this many tokens and are all supervised.
BatchShape batch_shape(int64_t rows, int64_t length, bool packed);
BatchShape batch_shape(const Prepared& run, const TrainOptions& options, int64_t length);

// Where the options ask for evaluation and generation. evaluated: tokens of the evaluation's rows.
BetweenSteps between_steps(const Prepared& run, const TrainOptions& options, int64_t evaluated);

// memory_plan(). Nothing, with one warning, for blocks that cannot be built or run without memory:
// such a run has no plan, and goes on.
std::vector<MemoryPlan> plan_or_warn(const LayoutPlan& plan, const BatchShape& batch,
                                     const Card& card, const BetweenSteps& between = {});

// What this rank has sent, over all axes and over what the strategy has made itself.
int64_t bytes_sent(const DeviceMesh& mesh, const Strategy& strategy);

}  // namespace tessera::programs
