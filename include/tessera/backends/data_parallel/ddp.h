// SPDX-License-Identifier: MIT
#pragma once
#include "tessera/backends/sharding_strategy.h"

namespace tessera {

/// Data parallelism (Li et al. 2020): parameters, gradients and optimizer state are replicated.
/// Gradients are all-reduced in buckets while backward still runs. With one rank it is plain
/// training ("single").
class Ddp : public ShardingStrategy {
 public:
  /// The setup outlives the strategy.
  Ddp(const ParallelConfig& config, const ShardingSetup& setup)
      : ShardingStrategy(config, setup, rules(config, setup.data.size())) {}
  /// One shard: nothing is sharded at any number of ranks.
  static ShardingRules rules(const ParallelConfig& config, int ranks);
  /// "single" or "ddp": ParallelConfig::strategy.
  std::string name() const override { return config().strategy; }
};

}  // namespace tessera
