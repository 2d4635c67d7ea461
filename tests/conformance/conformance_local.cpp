// SPDX-License-Identifier: MIT
#include "tests/conformance/communicator_conformance.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

namespace tessera::test {
namespace {

TEST_CASE("the local transport conforms") {
  const int ranks = GENERATE(1, 2, 3, 4, 8);
  for (const ConformanceCase& each : conformance_cases()) {
    INFO(each.name << " on " << ranks << " ranks");
    CHECK_NOTHROW(run_ranks(ranks, each.run));
  }
}

}  // namespace
}  // namespace tessera::test
