// SPDX-License-Identifier: MIT
#pragma once
#include "tessera/backends/sharding_strategy.h"

namespace tessera {

/// One flat parameter per unit, sharded (Zhao et al. 2023): a unit is a block, or several small
/// ones together (unit_numel). The full parameters live in fixed buffers while a block of the unit
/// runs, or, with reshard_after_forward = false, from their first use until the update. Hybrid
/// sharding (shard_ranks) cuts them over groups of neighbouring ranks and sums gradients over the
/// groups; with shard_ranks = 1 nothing is sharded and this is data parallelism.
class Fsdp : public ShardingStrategy {
 public:
  /// Collective when shard_ranks asks for groups.
  Fsdp(const ParallelConfig& config, const ShardingSetup& setup)
      : ShardingStrategy(config, setup, rules(config, setup.data.size())) {}
  /// What is sharded over how many of the data ranks, as the configuration says.
  static ShardingRules rules(const ParallelConfig& config, int ranks);
  std::string name() const override { return "fsdp"; }  ///< "fsdp"
};

}  // namespace tessera
