// SPDX-License-Identifier: MIT
#pragma once
// Rules and validation of configurations, without ranks.
#include <string>
#include <string_view>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/sharding/sharding_rules.h"

namespace tessera {

// Rules of config.strategy. Throws Error(kInvalidArgument) for an unknown name; does not check the
// rest of the configuration.
ShardingRules sharding_rules(const ParallelConfig& config, const MeshExtents& mesh);

// Whether the strategy reads this optional setting, named as in ParallelConfig: "unit_numel".
bool has_setting(const std::string& strategy, std::string_view setting);

// A non-default setting of ParallelConfig that nothing in this layout reads.
struct IdleSetting {
  std::string flag;  // "pipeline_chunks"
  std::string name;  // as in ParallelConfig: "pipeline.chunks"
  std::string why;   // what it belongs to
  bool refused;      // an error, because it describes a different run
};

// Idle settings in the order of layout_fields(). check_config() throws for the first `refused` one;
// make_strategy() warns about the others.
std::vector<IdleSetting> idle_settings(const ParallelConfig& config, const MeshExtents& mesh);

// First check of make_strategy(). Throws Error(kInvalidArgument) with the reason for an illegal
// combination.
void check_config(const ParallelConfig& config, const MeshExtents& mesh);
// Whether check_config() accepts it.
bool is_legal(const ParallelConfig& config, const MeshExtents& mesh);

}  // namespace tessera
