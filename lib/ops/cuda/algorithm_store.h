// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <string>

#include "lib/ops/algorithm_cache.h"

namespace tessera::ops::cuda {

// Algorithms for the current device, in a file of user_cache_directory() per GPU model and library
// version. Never destroyed.
AlgorithmCache& stored_algorithms(const std::string& subject, size_t library_version);

}  // namespace tessera::ops::cuda
