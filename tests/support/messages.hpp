#pragma once
// What a call said when it failed.
#include <string>

#include "tessera/core/error.h"

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

}  // namespace tessera
