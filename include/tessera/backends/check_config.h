#pragma once
// What strategies can do, before there are ranks.
#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"

namespace tessera {

// What make_strategy() checks first. Throws Error(kInvalidArgument) with the reason for what no
// strategy does.
void check_config(const ParallelConfig& config, const MeshExtents& mesh);

}  // namespace tessera
