// SPDX-License-Identifier: MIT
#pragma once
// A model that is nothing but parameters: what a step needs beyond what its strategy holds is a few
// numbers.
#include <cstdint>
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera::testing {

struct PileConfig {
  // Elements of the large parameter of each layer, which has a small one, too; 0: a block without
  // parameters.
  std::vector<int64_t> layers = {49'152, 49'152, 49'152, 49'152, 49'152};
  int64_t ends = 65'536;  // of the table that the first and the last block share
};

// Every block adds the sums of its parameters to what comes in, the last one adds that up. Large
// parameters are cut over a tensor axis, small ones held by all of it; the ends can be shared.
ModelSpec make_pile(const PileConfig& config = {});

}  // namespace tessera::testing
