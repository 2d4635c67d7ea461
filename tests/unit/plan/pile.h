// SPDX-License-Identifier: MIT
#pragma once
// A model of parameters only: a step needs just a few numbers beyond its strategy's memory.
#include <cstdint>
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera::testing {

struct PileConfig {
  // Elements of the large parameter of each layer, which also has a small one; 0: a block without
  // parameters.
  std::vector<int64_t> layers = {49'152, 49'152, 49'152, 49'152, 49'152};
  int64_t ends = 65'536;  // elements of the table shared by the first and the last block
};

// Every block adds the sums of its parameters to its input; the last one sums the result. Large
// parameters are cut over a tensor axis, small ones replicated; the ends can be shared.
ModelSpec make_pile(const PileConfig& config = {});

}  // namespace tessera::testing
