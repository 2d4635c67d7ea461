// SPDX-License-Identifier: MIT
#pragma once
// Environment variables that turn something on.
#include <cstdlib>
#include <string_view>

#include "tessera/core/error.h"

namespace tessera {

// Whether the variable is 1; off where it is not set. Throws Error(kInvalidArgument) for what is
// neither 0 nor 1.
inline bool is_on_in_environment(const char* variable) {
  const char* text = std::getenv(variable);
  const std::string_view value = text == nullptr ? "0" : text;
  check(value == "0" || value == "1", ErrorCode::kInvalidArgument, variable, "=", value,
        " is neither 0 nor 1");
  return value == "1";
}

}  // namespace tessera
