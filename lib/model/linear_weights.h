// SPDX-License-Identifier: MIT
#pragma once
// Blocks whose linear layers may be stored, or gathered, in 8 bits (PrecisionConfig::frozen,
// ParallelConfig::fp8_all_gather).
#include <string>
#include <vector>

#include "tessera/ops/fp8.h"

namespace tessera {

class Block;

class LinearWeights {
 public:
  virtual ~LinearWeights() = default;
  // Names of the weights of each product of these layers; those of one product share an input, and
  // a scale.
  virtual std::vector<std::vector<std::string>> linear_weights(const Fp8Layers& of) = 0;
};

// Those of the block; none of blocks of other kinds.
std::vector<std::vector<std::string>> linear_weights_of(Block& block, const Fp8Layers& of = {});

}  // namespace tessera
