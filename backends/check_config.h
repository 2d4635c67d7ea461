// SPDX-License-Identifier: MIT
#pragma once
// What strategies are and can do, before there are ranks.
#include <string>
#include <string_view>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/sharding/sharding_rules.h"

namespace tessera {

// Of config.strategy. Throws Error(kInvalidArgument) for an unknown name, but does not check the
// rest of the configuration.
ShardingRules sharding_rules(const ParallelConfig& config, const MeshExtents& mesh);

// Whether this strategy reads a setting that not all have, by its name in ParallelConfig:
// "unit_numel".
bool has_setting(const std::string& strategy, std::string_view setting);

// A setting of ParallelConfig that is not its default, although nothing of this layout reads it.
struct IdleSetting {
  std::string flag;  // "pipeline_chunks"
  std::string name;  // as in ParallelConfig: "pipeline.chunks"
  std::string why;   // what it belongs to
  bool refused;      // it says how the model is spread, so that the run would be another one
};

// In the order of layout_fields(). check_config() refuses the first that is `refused`;
// make_strategy() warns of the others.
std::vector<IdleSetting> idle_settings(const ParallelConfig& config, const MeshExtents& mesh);

// What make_strategy() and memory_plan() check first. Throws Error(kInvalidArgument) with the
// reason for what no strategy does.
void check_config(const ParallelConfig& config, const MeshExtents& mesh);
// Whether check_config() takes it.
bool is_legal(const ParallelConfig& config, const MeshExtents& mesh);

}  // namespace tessera
