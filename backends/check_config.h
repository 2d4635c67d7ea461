#pragma once
// What strategies can do, before there are ranks.
#include <string>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"

namespace tessera {

// A setting of ParallelConfig that is not its default, although nothing of this layout reads it.
struct IdleSetting {
  std::string name;  // as in ParallelConfig: "pipeline.chunks"
  std::string why;   // what it belongs to
  bool refused;      // it says how the model is spread, so that the run would be another one
};

// In the order of ParallelConfig. check_config() refuses the first that is `refused`;
// make_strategy() warns of the others.
std::vector<IdleSetting> idle_settings(const ParallelConfig& config, const MeshExtents& mesh);

// What make_strategy() checks first. Throws Error(kInvalidArgument) with the reason for what no
// strategy does.
void check_config(const ParallelConfig& config, const MeshExtents& mesh);

}  // namespace tessera
