// SPDX-License-Identifier: MIT
#include "tessera/backends/zero/zero.h"

namespace tessera {

ShardingRules ZeroStage1::rules(const ParallelConfig&, int ranks) { return {.shards = ranks}; }

ShardingRules ZeroStage2::rules(const ParallelConfig& config, int ranks) {
  return {.shards = ranks, .shards_gradients = !config.reduce_at_boundary};
}

ShardingRules ZeroStage3::rules(const ParallelConfig& config, int ranks) {
  return {.shards = ranks,
          .granularity = ShardGranularity::kParameter,
          .persistence_threshold = config.persistence_threshold,
          .gathers_parameters = true,
          .shards_gradients = true};
}

}  // namespace tessera
