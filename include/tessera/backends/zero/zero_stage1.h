#pragma once
#include "tessera/backends/sharding_strategy.h"

namespace tessera {

// ZeRO stage 1 (Rajbhandari et al. 2020): optimizer state and master weights are sharded. Gradients
// are reduce-scattered in place during the last micro-batch's backward; updated parameters are
// all-gathered under the next forward.
class ZeroStage1 : public ShardingStrategy {
 public:
  ZeroStage1(const ParallelConfig& config, const ShardingSetup& setup)
      : ShardingStrategy(config, setup, rules(config, setup.data.size())) {}
  static ShardingRules rules(const ParallelConfig& config, int ranks);
  std::string name() const override { return "zero1"; }
};

}  // namespace tessera
