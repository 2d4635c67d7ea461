#pragma once
#include "tessera/backends/sharding_strategy.h"

namespace tessera {

// ZeRO stage 2: gradients are sharded too. A block's full gradient lives only until it is
// reduce-scattered, every micro-batch; with reduce_at_boundary full gradients are kept over the
// accumulation and reduced once, as in stage 1.
class ZeroStage2 : public ShardingStrategy {
 public:
  ZeroStage2(const ParallelConfig& config, const ShardingSetup& setup)
      : ShardingStrategy(config, setup, rules(config, setup.data.size())) {}
  static ShardingRules rules(const ParallelConfig& config, int ranks);
  std::string name() const override { return "zero2"; }
};

}  // namespace tessera
