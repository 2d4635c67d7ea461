// SPDX-License-Identifier: MIT
#pragma once
// What a call said when it failed.
#include <string>

#include "tessera/core/error.h"
#include "tests/support/test.hpp"

namespace tessera {

// The message of the tessera::Error that `call` throws; "no error" when it returns. Other
// exceptions pass through.
template <typename Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// The same, for an Error that must have this code.
template <typename Call>
std::string error_of(ErrorCode code, Call&& call) {
  return error_of([&] {
    try {
      call();
    } catch (const Error& error) {
      CHECK(error.code() == code);
      throw;
    }
  });
}

}  // namespace tessera
