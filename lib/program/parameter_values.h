// SPDX-License-Identifier: MIT
#pragma once
// Weights that are drawn as a manifest says.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lib/program/manifest.h"

namespace tessera::program {

// fp32 on the CPU. The values depend on the seed alone, not on how many threads draw them.
at::Tensor draw(const Init& init, at::IntArrayRef shape, uint64_t seed);

}  // namespace tessera::program
