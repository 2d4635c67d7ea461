// SPDX-License-Identifier: MIT
#pragma once
#include "tessera/core/error.h"

namespace tessera::programs {

// What a user set must hold, or is refused as usage.
template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  check(condition, ErrorCode::kInvalidArgument, parts...);
}

}  // namespace tessera::programs
