// SPDX-License-Identifier: MIT
#pragma once
// Boolean environment variables.
#include <cstdlib>
#include <string_view>

#include "tessera/core/error.h"

namespace tessera {

// True if the variable is 1. Throws Error(kInvalidArgument) for values other than 0 and 1.
inline bool is_on_in_environment(const char* variable, bool where_not_set = false) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return where_not_set;
  const std::string_view value = text;
  check(value == "0" || value == "1", ErrorCode::kInvalidArgument, variable, "=", value,
        " is neither 0 nor 1");
  return value == "1";
}

}  // namespace tessera
