// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <string>

#include "lib/ops/plan_cache.h"

namespace tessera::ops::cuda {

// Plans for the current device, kept in user_cache_directory() for each model of GPU and version of
// the library that they belong to. Never destroyed.
PlanCache& stored_plans(const std::string& subject, size_t library_version);

}  // namespace tessera::ops::cuda
