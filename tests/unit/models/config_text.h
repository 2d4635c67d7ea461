#pragma once
// Texts of config.json with one thing changed, and what becomes of them.
#include <functional>
#include <string>

#include "tessera/core/error.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

namespace tessera::testing {

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// The error names the file and says what was expected.
inline void check_config_refused(const std::function<void()>& parse, const std::string& expected) {
  const std::string message = error_of(ErrorCode::kDataLoss, parse);
  CHECK_THAT(message, Catch::Matchers::Contains(expected));
  CHECK_THAT(message, Catch::Matchers::Contains("config.json"));
}

}  // namespace tessera::testing
