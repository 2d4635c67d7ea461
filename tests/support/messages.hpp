// SPDX-License-Identifier: MIT
#pragma once
// Error messages of calls.
#include <string>

#include "tessera/core/error.h"
#include "tests/support/test.hpp"

namespace tessera {

// Message of the tessera::Error that `call` throws; "no error" if it returns. Other exceptions
// propagate.
template <typename Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// As above, for an Error with this code.
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
