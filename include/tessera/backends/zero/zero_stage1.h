#pragma once
#include "tessera/backends/sharding_strategy.h"

namespace tessera {

// ZeRO stage 1 (Rajbhandari et al. 2020): optimizer state and master weights are sharded. Gradients
// are reduce-scattered in place during the last micro-batch's backward; updated parameters are
// all-gathered under the next forward.
class ZeroStage1 : public ShardingStrategy {
 public:
  using ShardingStrategy::ShardingStrategy;
  std::string name() const override { return "zero1"; }

 protected:
  Cut cut() const override;
};

}  // namespace tessera
