// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <string>

#include "lib/ops/plan_cache.h"

namespace tessera::ops::cuda {

// Plans for the current device, in a file of user_cache_directory() per GPU model and library
// version. Never destroyed.
PlanCache& stored_plans(const std::string& subject, size_t library_version);

}  // namespace tessera::ops::cuda
