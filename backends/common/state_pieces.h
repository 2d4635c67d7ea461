// SPDX-License-Identifier: MIT
#pragma once
// Pieces of parameters that this rank owns.
#include <cstddef>
#include <vector>

#include "backends/common/attached_model.h"
#include "backends/common/process_groups.h"
#include "tessera/checkpoint/state.h"

namespace tessera {

// Elements of a unit's flat buffer in one owned segment and one entry.
struct UnitPiece {
  size_t segment = 0, entry = 0;
  FlatRange part;             // in the flat buffer
  int64_t segment_begin = 0;  // start of the owned segment, likewise
  TensorSlice slice;
};
std::vector<UnitPiece> pieces_of_unit(const AttachedModel& model, const ProcessGroups& ranks,
                                      size_t unit);

}  // namespace tessera
