// SPDX-License-Identifier: MIT
#pragma once
// The shared dimension of a tensor in a view of it.
#include <optional>
#include <vector>

#include "lib/program/graph.h"
#include "lib/program/tensor/cut_shapes.h"

namespace tessera::program {

// The dimension of the view, with extents `to`, that holds what `own` says of a tensor with extents
// `from`. nullopt: a rank's part is no part of one dimension there.
std::optional<CutState> viewed_state(const std::vector<Extent>& from, const std::vector<Extent>& to,
                                     const CutState& own);

}  // namespace tessera::program
