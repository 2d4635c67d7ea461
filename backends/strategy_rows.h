// SPDX-License-Identifier: MIT
#pragma once
// The strategies by name.
#include <memory>
#include <span>
#include <string>

#include "tessera/backends/sharding_strategy.h"

namespace tessera {

// A reason says why a combination is refused, empty that it is legal. Pipeline and tensor
// parallelism go with any strategy.
struct StrategyRow {
  const char* name;
  std::unique_ptr<ShardingStrategy> (*make)(const ParallelConfig&, const ShardingSetup&);
  ShardingRules (*rules)(const ParallelConfig&, int ranks);
  const char* several_data_ranks = "";
  const char* offload_optimizer = "";
  const char* offload_parameters = "";
};

std::span<const StrategyRow> strategy_rows();
// Throws Error(kInvalidArgument) with the names there are.
const StrategyRow& strategy_row(const std::string& name);

}  // namespace tessera
