#pragma once
// Texts of config.json with one thing changed, and what becomes of them.
#include <functional>
#include <string>

#include "tessera/core/error.h"
#include "tests/support/test.hpp"

namespace tessera::testing {

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// The error names the file and says what was expected.
inline void check_config_refused(const std::function<void()>& parse, const std::string& expected) {
  try {
    parse();
    FAIL("accepted: " << expected);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kDataLoss);
    CHECK_THAT(error.what(), Catch::Matchers::Contains(expected));
    CHECK_THAT(error.what(), Catch::Matchers::Contains("config.json"));
  }
}

}  // namespace tessera::testing
