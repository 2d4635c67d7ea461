// SPDX-License-Identifier: MIT
#pragma once
// Parameters as slices of whole ones, and whether an optimizer's blocks keep to them.
#include <vector>

#include "backends/common/strategy_ranks.h"
#include "tessera/checkpoint/state.h"
#include "tessera/sharding/unit.h"

namespace tessera {

// Elements `part` of the unit's flat buffer, which lie in the entry, as elements of the whole
// parameter.
TensorSlice slice_of_whole(const FlatEntry& entry, const FlatRange& part);

// Collective over all ranks that share a batch. Throws Error(kInvalidArgument) on all of them where
// a tensor axis cuts a parameter inside blocks, or where every trained parameter is small.
void require_blocks(const std::vector<ParameterUnit>& units, const StateRules& rules,
                    const StrategyRanks& ranks);

}  // namespace tessera
