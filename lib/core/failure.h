// SPDX-License-Identifier: MIT
#pragma once
// What an exception means, of whatever library it is.
#include <exception>

#include "tessera/core/error.h"

namespace tessera {

struct Failure {
  ErrorCode code;
  std::string message;  // without LibTorch's stack
};

// error: null for one that is no std::exception.
Failure failure_of(const std::exception* error);
// Of the exception that is being handled. Called in a handler only.
Failure current_failure();

// Memory of the host or of a GPU ran out, or the host started no further thread.
bool is_out_of_memory(const std::exception& error);

// For programs: where memory runs out in a place that cannot throw (a destructor, a thread), the
// process writes one line and ends with exit_code(kResourceExhausted) instead of abort(). It takes
// the place of std::terminate's handler.
void exit_when_out_of_memory();

}  // namespace tessera
