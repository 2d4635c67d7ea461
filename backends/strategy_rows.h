// SPDX-License-Identifier: MIT
#pragma once
// Table of strategies by name.
#include <memory>
#include <span>
#include <string>

#include "backends/strategy_kinds.h"
#include "tessera/backends/sharding_strategy.h"

namespace tessera {

// A strategy. Reasons say why a combination is illegal; empty: legal. Pipeline and tensor
// parallelism combine with every strategy.
struct StrategyRow {
  StrategyKind kind;
  std::unique_ptr<ShardingStrategy> (*make)(const ParallelConfig&, const ShardingSetup&);
  ShardingRules (*rules)(const ParallelConfig&, int ranks);
  const char* several_data_ranks = "";
  const char* offload_optimizer = "";
  const char* offload_parameters = "";
};

std::span<const StrategyRow> strategy_rows();
// The row of a name. Throws Error(kInvalidArgument) with the known names for another.
const StrategyRow& strategy_row(const std::string& name);

}  // namespace tessera
