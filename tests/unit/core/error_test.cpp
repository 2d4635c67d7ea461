// SPDX-License-Identifier: MIT
#include "tessera/core/error.h"

#include "tests/support/test.hpp"

using namespace tessera;

TEST_CASE("an error carries its code, its message and its exit code") {
  try {
    check(1 + 1 == 3, ErrorCode::kDataLoss, "file ", "x.json", " byte ", 7);
    FAIL("check() let a false condition pass");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kDataLoss);
    CHECK(std::string(error.what()) == "file x.json byte 7");
    CHECK(exit_code(error.code()) == 4);
  }
}
