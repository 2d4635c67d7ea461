// SPDX-License-Identifier: MIT
#pragma once
// Scales of frozen matrices that are stored in 8 bits (PrecisionConfig::frozen).
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "tessera/model/block.h"

namespace tessera {

// By parameter: fp32 [], a power of two.
using FrozenScales = std::map<std::string, at::Tensor>;

// Of the block's products whose weights are all frozen, from their values. On a tensor axis the
// ranks have each scale in common. Collective over that axis.
FrozenScales frozen_scales(Block& block, const std::vector<Parameter>& parameters);

// fp32 [n]; each element starts at a multiple of 16 bytes, as cuBLAS asks of a scale.
at::Tensor aligned_scales(const std::vector<at::Tensor>& scales);

}  // namespace tessera
