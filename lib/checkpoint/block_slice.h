// SPDX-License-Identifier: MIT
#pragma once
// What is kept once for every block of a tensor's elements, as a tensor of its own.
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/checkpoint/state.h"

namespace tessera {

// Blocks of `block` elements in the row-major order of a tensor of this shape: of its last
// dimension where that is a multiple, else [blocks].
std::vector<int64_t> shape_in_blocks(const std::vector<int64_t>& shape, int64_t block);

// What keeps a slice from being whole blocks, or "": a sliced dimension that cuts through them.
std::string block_defect(const TensorSlice& slice, int64_t block);

// The blocks of a slice without such a defect that begins with one; its last block may be shorter.
TensorSlice slice_in_blocks(const TensorSlice& slice, int64_t block);

}  // namespace tessera
