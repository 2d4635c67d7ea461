// SPDX-License-Identifier: MIT
#pragma once
// Parameters as slices of whole ones, and whether an optimizer's blocks keep to them.
#include <cstdint>
#include <string>
#include <vector>

#include "backends/common/strategy_ranks.h"
#include "tessera/checkpoint/state.h"
#include "tessera/sharding/unit.h"

namespace tessera {

// Elements `part` of the unit's flat buffer, which lie in the entry, as elements of the whole
// parameter.
TensorSlice slice_of_whole(const FlatEntry& entry, const FlatRange& part);

// Of the parameters whose optimizer keeps a tensor by blocks of elements.
struct BlockCounts {
  int64_t trained = 0, large = 0, cut = 0;  // parameters; cut: inside blocks, by a tensor axis
  std::string defect;                       // of the first one that is cut

  void add(const std::string& name, const FlatEntry& entry, const StateRules& rules);
  // Throws Error(kInvalidArgument) where one is cut inside blocks, or where all are small.
  void require(const StateRules& rules) const;
};

// Collective over all ranks that share a batch. Throws Error(kInvalidArgument) on all of them where
// a tensor axis cuts a parameter inside blocks, or where every trained parameter is small.
void require_blocks(const std::vector<ParameterUnit>& units, const StateRules& rules,
                    const StrategyRanks& ranks);

}  // namespace tessera
