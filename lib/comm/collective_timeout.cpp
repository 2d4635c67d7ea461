// SPDX-License-Identifier: MIT
#include "lib/comm/collective_timeout.h"

#include <cstdlib>

#include "tessera/core/error.h"

namespace tessera {
namespace {

std::chrono::seconds from_environment() {
  const char* text = std::getenv("TESSERA_COLLECTIVE_TIMEOUT_S");
  if (text == nullptr) return std::chrono::seconds(1800);
  char* end = nullptr;
  const long seconds = std::strtol(text, &end, 10);
  check(*end == '\0' && seconds > 0 && seconds < (1 << 30), ErrorCode::kInvalidArgument,
        "TESSERA_COLLECTIVE_TIMEOUT_S=", text, " is not a positive number of seconds");
  return std::chrono::seconds(seconds);
}

}  // namespace

std::chrono::seconds collective_timeout() {
  static const std::chrono::seconds timeout = from_environment();
  return timeout;
}

}  // namespace tessera
