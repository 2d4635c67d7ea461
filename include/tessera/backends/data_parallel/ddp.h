#pragma once
#include "tessera/backends/sharding_strategy.h"

namespace tessera {

// Data parallelism (Li et al. 2020): everything in full on every rank; gradients are all-reduced in
// buckets while backward still runs. With one rank it is plain training ("single").
class Ddp : public ShardingStrategy {
 public:
  using ShardingStrategy::ShardingStrategy;
  std::string name() const override { return config().strategy; }

 protected:
  Cut cut() const override;
};

}  // namespace tessera
