// SPDX-License-Identifier: MIT
#pragma once
// What an optimizer of elements keeps of a stage's shards. Small parameters may be kept otherwise
// (StateRules), and ranks own different ones: the most of all.
#include <cstdint>

#include "lib/plan/stage.h"

namespace tessera {

// Bytes on the rank of the data axis that has the most, and of all ranks that own a shard.
struct StateBytes {
  double most = 0, all = 0;
};
StateBytes state_bytes(const LayoutPlan& plan, const Stage& stage);

// Of a rank's pieces of a unit, neighbours that are kept in the same way together, at most
// chunk_numel of them at a time (StreamedStep): elements of the largest, and bytes of what is kept
// for the largest of either way. The most of any rank. matrices: of units that are updated whole,
// for which nothing is kept there.
struct StateChunks {
  double numel = 0, bytes = 0;
};
StateChunks state_chunks(const LayoutPlan& plan, const Stage& stage, bool matrices = false);

// Throws Error(kInvalidArgument) where the layout cannot keep moments in 8 bits, as attach() does.
void require_state_blocks(const LayoutPlan& plan);

}  // namespace tessera
