// SPDX-License-Identifier: MIT
#include "tessera/backends/zero/zero.h"

#include "backends/common/message_rules.h"

namespace tessera {

ShardingRules ZeroStage1::rules(const ParallelConfig& config, int ranks) {
  return {.shards = ranks, .message_numel = message_numel(config, ranks)};
}

ShardingRules ZeroStage2::rules(const ParallelConfig& config, int ranks) {
  return {.shards = ranks,
          .message_numel = message_numel(config, ranks),
          .shards_gradients = !config.reduce_at_boundary};
}

ShardingRules ZeroStage3::rules(const ParallelConfig& config, int ranks) {
  return {.shards = ranks,
          .granularity = ShardGranularity::kParameter,
          .persistence_threshold = config.persistence_threshold,
          .message_numel = message_numel(config, ranks),
          .gathers_parameters = true,
          .coded_layers = coded_layers(config, ranks),
          .shards_gradients = true};
}

}  // namespace tessera
