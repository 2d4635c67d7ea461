#pragma once
#include "tessera/backends/sharding_strategy.h"

namespace tessera {

// ZeRO stage 3: parameters are sharded as well, each on its own; those below the persistence
// threshold stay in full. A block's parameters are gathered before its forward and again before its
// backward, the next block's meanwhile.
class ZeroStage3 : public ShardingStrategy {
 public:
  using ShardingStrategy::ShardingStrategy;
  std::string name() const override { return "zero3"; }

 protected:
  Cut cut() const override {
    return {shards().size(), ShardGranularity::kParameter, config().persistence_threshold};
  }
  std::unique_ptr<ParameterStore> make_parameters() override;
  std::unique_ptr<GradientStore> make_gradients() override;
};

}  // namespace tessera
