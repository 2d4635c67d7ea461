// SPDX-License-Identifier: MIT
#include "lib/comm/launch/exit_status.h"

#include "tests/support/test.hpp"

namespace tessera {
namespace {

ExitStatus unavailable(const std::string& message) {
  return exit_status_of(ErrorCode::kUnavailable, message);
}

TEST_CASE("a rank that passes on another's message is counted on its line") {
  const std::string died = "rank 1 (host a) has died: all_reduce of h.7.weight";
  const auto lines = exit_status_lines(
      {unavailable("rank 2 failed: " + died), {}, unavailable(died), unavailable(died)});
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].level == LogLevel::kError);
  CHECK(lines[0].text == "rank 2: peer unavailable: " + died + " (ranks 0, 3: same)");
}

TEST_CASE("the cause of an end is an error, what follows from it is not") {
  const auto lines = exit_status_lines({unavailable("rank 1 did not answer"),
                                        exit_status_of(ErrorCode::kDataLoss, "no space on disk"),
                                        unavailable("rank 1 failed: no space on disk")});
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].level == LogLevel::kError);
  CHECK(lines[0].text.find("no space on disk (rank 2: same)") != std::string::npos);
  CHECK(lines[1].level == LogLevel::kInfo);
  CHECK(lines[1].text.find("rank 1 did not answer") != std::string::npos);
}

TEST_CASE("ranks that fail by different causes have a line each") {
  const auto lines =
      exit_status_lines({unavailable("host a is gone"), unavailable("host b is gone")});
  CHECK(lines.size() == 2);
  const auto numbers =
      exit_status_lines({exit_status_of(ErrorCode::kDataLoss, "3 bytes are missing"),
                         exit_status_of(ErrorCode::kDataLoss, "4 bytes are missing")});
  REQUIRE(numbers.size() == 1);
  CHECK(numbers[0].text.ends_with("(rank 1: alike)"));
}

}  // namespace
}  // namespace tessera
