// SPDX-License-Identifier: MIT
#pragma once
#include "tessera/backends/sharding_strategy.h"

namespace tessera {

/// One sharded flat parameter per unit (Zhao et al. 2023): a unit is a block, or several small
/// ones together (unit_numel). Unsharded parameters live in fixed buffers while a block of the unit
/// runs. With reshard_after_forward = false they live from their first use until the update. Hybrid
/// sharding (shard_ranks) shards over groups of neighbouring ranks and all-reduces gradients across
/// the groups. With shard_ranks = 1 nothing is sharded: data parallelism.
class Fsdp : public ShardingStrategy {
 public:
  /// Collective when shard_ranks makes groups.
  Fsdp(const ParallelConfig& config, const ShardingSetup& setup)
      : ShardingStrategy(config, setup, rules(config, setup.data.size())) {}
  /// Rules: parameters, gradients (unless reduce_at_boundary) and optimizer state over shard_ranks
  /// ranks.
  static ShardingRules rules(const ParallelConfig& config, int ranks);
  std::string name() const override { return "fsdp"; }  ///< "fsdp"
};

}  // namespace tessera
