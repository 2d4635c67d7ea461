// SPDX-License-Identifier: MIT
#pragma once
// Classification of exceptions of any library.
#include <exception>

#include "tessera/core/error.h"

namespace tessera {

struct Failure {
  ErrorCode code;
  std::string message;  // without LibTorch's stack trace
};

// error: null for an exception that is not a std::exception.
Failure failure_of(const std::exception* error);
// For the exception being handled; call inside a catch clause only.
Failure current_failure();

// True when host or GPU memory ran out, or no further thread could be created.
bool is_out_of_memory(const std::exception& error);

// For programs: replaces std::terminate's handler. When memory runs out where nothing can be thrown
// (a destructor, a thread), the process writes one line and exits with
// exit_code(kResourceExhausted).
void exit_when_out_of_memory();

}  // namespace tessera
