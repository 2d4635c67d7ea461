// SPDX-License-Identifier: MIT
#pragma once
#include "tessera/core/error.h"

namespace tessera::programs {

// Throws a usage error unless a user's setting fulfils the condition.
template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  check(condition, ErrorCode::kInvalidArgument, parts...);
}

}  // namespace tessera::programs
