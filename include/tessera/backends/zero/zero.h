// SPDX-License-Identifier: MIT
#pragma once
#include "tessera/backends/sharding_strategy.h"

namespace tessera {

/// ZeRO stage 1 (Rajbhandari et al. 2020): optimizer state and master weights are sharded.
/// Gradients are reduce-scattered in place during the last micro-batch's backward; updated
/// parameters are all-gathered under the next forward.
class ZeroStage1 : public ShardingStrategy {
 public:
  /// The setup outlives the strategy.
  ZeroStage1(const ParallelConfig& config, const ShardingSetup& setup)
      : ShardingStrategy(config, setup, rules(config, setup.data.size())) {}
  /// One shard a rank, of optimizer state and masters.
  static ShardingRules rules(const ParallelConfig& config, int ranks);
  std::string name() const override { return "zero1"; }  ///< "zero1"
};

/// ZeRO stage 2: gradients are sharded too. A block's full gradient lives only until it is
/// reduce-scattered, every micro-batch; with reduce_at_boundary full gradients are accumulated and
/// reduced once, as in stage 1.
class ZeroStage2 : public ShardingStrategy {
 public:
  /// The setup outlives the strategy.
  ZeroStage2(const ParallelConfig& config, const ShardingSetup& setup)
      : ShardingStrategy(config, setup, rules(config, setup.data.size())) {}
  /// One shard a rank, of gradients too unless they are reduced at the boundary.
  static ShardingRules rules(const ParallelConfig& config, int ranks);
  std::string name() const override { return "zero2"; }  ///< "zero2"
};

/// ZeRO stage 3: parameters are sharded too, each on its own; those below the persistence threshold
/// stay unsharded. A block's parameters are gathered before its forward and again before its
/// backward, while the previous block runs.
class ZeroStage3 : public ShardingStrategy {
 public:
  /// The setup outlives the strategy.
  ZeroStage3(const ParallelConfig& config, const ShardingSetup& setup)
      : ShardingStrategy(config, setup, rules(config, setup.data.size())) {}
  /// One shard a rank of every parameter that is not below the threshold.
  static ShardingRules rules(const ParallelConfig& config, int ranks);
  std::string name() const override { return "zero3"; }  ///< "zero3"
};

}  // namespace tessera
