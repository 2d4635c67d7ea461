// SPDX-License-Identifier: MIT
#include "tessera/core/error.h"

namespace tessera {

const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kResourceExhausted:
      return "out of memory";
    case ErrorCode::kDataLoss:
      return "bad data";
    case ErrorCode::kUnavailable:
      return "peer unavailable";
    case ErrorCode::kNumerics:
      return "numerics";
    case ErrorCode::kInternal:
      return "internal";
    case ErrorCode::kPreempted:
      return "preempted";
  }
  return "unknown";
}

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return 2;
    case ErrorCode::kResourceExhausted:
      return 3;
    case ErrorCode::kDataLoss:
      return 4;
    case ErrorCode::kUnavailable:
      return 5;
    case ErrorCode::kNumerics:
      return 6;
    case ErrorCode::kInternal:
      return 70;
    case ErrorCode::kPreempted:
      return 75;
  }
  return 70;
}

}  // namespace tessera
