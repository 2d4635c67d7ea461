// SPDX-License-Identifier: MIT
#pragma once
// Slices of whole parameters, and their compatibility with an optimizer's blocks.
#include <cstdint>
#include <string>
#include <vector>

#include "backends/common/process_groups.h"
#include "tessera/checkpoint/state.h"
#include "tessera/sharding/unit.h"

namespace tessera {

// Elements `part` of the unit's flat buffer, inside the entry, as elements of the whole parameter.
TensorSlice slice_of_whole(const FlatEntry& entry, const FlatRange& part);

// Counts of parameters for an optimizer with block-wise state.
struct BlockCounts {
  int64_t trained = 0, large = 0, cut = 0;  // parameters; cut: inside blocks, by an axis
  std::string defect;                       // description of the first cut one

  // of_experts: an expert axis cuts it, if one does.
  void add(const std::string& name, const FlatEntry& entry, const StateRules& rules,
           bool of_experts);
  // Throws Error(kInvalidArgument) if a parameter is cut inside blocks, or if all are small.
  void require(const StateRules& rules) const;
};

// Checks BlockCounts over all ranks that share a batch; collective. Throws Error(kInvalidArgument)
// on all of them if an axis cuts a parameter inside blocks, or if every trained parameter is
// small.
void require_blocks(const std::vector<ParameterUnit>& units, const StateRules& rules,
                    const ProcessGroups& ranks);

}  // namespace tessera
