// SPDX-License-Identifier: MIT
#pragma once
// Blocks whose frozen linear layers may be stored in 8 bits (PrecisionConfig::frozen).
#include <string>
#include <vector>

namespace tessera {

class Block;

class LinearWeights {
 public:
  virtual ~LinearWeights() = default;
  // Names of the weights of each product; those of one product share an input, and a scale.
  virtual std::vector<std::vector<std::string>> linear_weights() = 0;
};

// Those of the block; none of blocks of other kinds.
std::vector<std::vector<std::string>> linear_weights_of(Block& block);

}  // namespace tessera
