#pragma once
#include "tessera/backends/sharding_strategy.h"

namespace tessera {

// ZeRO stage 3: parameters are sharded as well, each on its own; those below the persistence
// threshold stay in full. A block's parameters are gathered before its forward and again before its
// backward, the next block's meanwhile.
class ZeroStage3 : public ShardingStrategy {
 public:
  ZeroStage3(const ParallelConfig& config, const ShardingSetup& setup)
      : ShardingStrategy(config, setup, rules(config, setup.data.size())) {}
  static ShardingRules rules(const ParallelConfig& config, int ranks);
  std::string name() const override { return "zero3"; }
};

}  // namespace tessera
