// SPDX-License-Identifier: MIT
#pragma once
// What the flags of the strategy section mean to the library.
#include <cstdint>

#include "lib/settings/flags.h"
#include "lib/settings/options.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"

namespace tessera::programs {

// The strategy that shards nothing: ddp, and single on one rank.
const char* plain_strategy(int64_t ranks);
// Where --strategy is not given.
void choose_strategy(const FlagSet& flags, int64_t world_size, TrainOptions& options);

// What the flags alone say; stages by flops or parameters.
ParallelConfig parallel_config(const TrainOptions& options);

// The data axis gets what the other two leave. DeviceMesh refuses what does not fit the world.
MeshExtents mesh_extents(const TrainOptions& options, int world_size);

// Whether the ranks of a job can be shared out over the axes; throws Error(kInvalidArgument) in the
// names of the flags.
void check_axes(const TrainOptions& options, int64_t world_size);

}  // namespace tessera::programs
