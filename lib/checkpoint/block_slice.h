// SPDX-License-Identifier: MIT
#pragma once
// Slices of block-wise data (one value per block of elements) stored as a tensor.
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/checkpoint/state.h"

namespace tessera {

// Shape of one value per `block` elements in row-major order: blocks of the last dimension if that
// is a multiple, else [blocks].
std::vector<int64_t> shape_in_blocks(const std::vector<int64_t>& shape, int64_t block);

// Why a slice does not consist of whole blocks (its sliced dimension cuts through them); "" if it
// does.
std::string block_defect(const TensorSlice& slice, int64_t block);

// The slice's blocks. The slice must have no block_defect() and start with a block; its last block
// may be shorter.
TensorSlice slice_in_blocks(const TensorSlice& slice, int64_t block);

}  // namespace tessera
