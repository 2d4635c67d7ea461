// SPDX-License-Identifier: MIT
#pragma once
// Conversion of the strategy section's flags to the library's configuration.
#include <cstdint>
#include <string>

#include "lib/settings/flags.h"
#include "lib/settings/options.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"

namespace tessera::programs {

// The strategy that shards nothing: ddp, and single on one rank.
std::string plain_strategy(int64_t ranks);
// Where --strategy is not given.
void choose_strategy(const FlagSet& flags, int64_t world_size, TrainOptions& options);

// Configuration from the flags alone; stages by flops or parameters.
ParallelConfig parallel_config(const TrainOptions& options);

// The data axis gets the remaining ranks. DeviceMesh rejects extents that do not fit the world
// size.
MeshExtents mesh_extents(const TrainOptions& options, int world_size);

// Throws Error(kInvalidArgument) naming the flags unless the job's ranks can be divided over the
// axes.
void check_axes(const TrainOptions& options, int64_t world_size);

}  // namespace tessera::programs
