// SPDX-License-Identifier: MIT
#pragma once
// Catch2 2 or 3, included after LibTorch's logging: both define CHECK, and the later one wins.
#include <c10/util/Logging.h>

#include <string>

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

namespace tessera::test {

// Text matchers.
inline auto contains(const std::string& text) {
#if __has_include(<catch2/catch_all.hpp>)
  return Catch::Matchers::ContainsSubstring(text);
#else
  return Catch::Matchers::Contains(text);
#endif
}
inline auto starts_with(const std::string& text) { return Catch::Matchers::StartsWith(text); }
inline auto ends_with(const std::string& text) { return Catch::Matchers::EndsWith(text); }

}  // namespace tessera::test
