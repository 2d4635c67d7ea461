// SPDX-License-Identifier: MIT
#include "lib/model/linear_weights.h"

#include "tessera/model/block.h"

namespace tessera {

std::vector<std::vector<std::string>> linear_weights_of(Block& block, const Fp8Layers& of) {
  auto* const has = dynamic_cast<LinearWeights*>(&block);
  return has == nullptr ? std::vector<std::vector<std::string>>() : has->linear_weights(of);
}

}  // namespace tessera
