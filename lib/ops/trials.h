// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

namespace tessera::ops {

// How many products of this process ran while it was still being found out which algorithm is the
// fastest for them; 0 in builds without CUDA.
int64_t products_on_trial();

}  // namespace tessera::ops
