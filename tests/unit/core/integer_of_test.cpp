// SPDX-License-Identifier: MIT
#include "lib/core/integer_of.h"

#include "tests/support/test.hpp"

using namespace tessera;

TEST_CASE("doubles become the nearest integer there is") {
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  constexpr auto kLeast = std::numeric_limits<int64_t>::min();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  CHECK(integer_of(2.9) == 2);
  CHECK(integer_of(-2.9) == -2);
  CHECK(integer_of(0x1p62) == int64_t{1} << 62);
  CHECK(integer_of(std::nextafter(0x1p63, 0)) == kMost - 1023);
  for (const double large : {0x1p63, 1e300, kInfinity}) {
    CHECK(integer_of(large) == kMost);
    CHECK(integer_of(-large) == kLeast);
  }
  CHECK(integer_of(std::nan("")) == 0);
}
