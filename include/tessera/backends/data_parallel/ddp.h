// SPDX-License-Identifier: MIT
#pragma once
#include "tessera/backends/sharding_strategy.h"

namespace tessera {

/// Data parallelism (Li et al. 2020): everything in full on every rank; gradients are all-reduced
/// in buckets while backward still runs. With one rank it is plain training ("single").
class Ddp : public ShardingStrategy {
 public:
  Ddp(const ParallelConfig& config, const ShardingSetup& setup)
      : ShardingStrategy(config, setup, rules(config, setup.data.size())) {}
  static ShardingRules rules(const ParallelConfig& config, int ranks);
  std::string name() const override { return config().strategy; }
};

}  // namespace tessera
