// SPDX-License-Identifier: MIT
#include "tessera/backends/fsdp/fsdp.h"

#include "backends/common/message_rules.h"

namespace tessera {

ShardingRules Fsdp::rules(const ParallelConfig& config, int ranks) {
  const int shards = config.shard_ranks == 0 ? ranks : config.shard_ranks;
  const bool to_host = config.offload.what == Offload::kOptimizerAndParameters;
  return {.shards = shards,
          .unit_numel = config.unit_numel,
          .message_numel = message_numel(config, shards > 1 ? shards : ranks),
          .gathers_parameters = shards > 1 || to_host,
          .keeps_gathered = !config.reshard_after_forward,
          .coded_layers = coded_layers(config, shards),
          .shards_gradients = shards > 1 && !config.reduce_at_boundary};
}

}  // namespace tessera
