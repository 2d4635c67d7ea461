// SPDX-License-Identifier: MIT
#include "tessera/core/version.h"

#include <torch/version.h>

#include "lib/core/version_flag.h"
#include "tests/support/test.hpp"

namespace tessera {
namespace {

TEST_CASE("a build says its version, LibTorch and transports") {
  const BuildInfo info = build_info();
  REQUIRE(info.version == std::to_string(TESSERA_VERSION_MAJOR) + "." +
                              std::to_string(TESSERA_VERSION_MINOR) + "." +
                              std::to_string(TESSERA_VERSION_PATCH));
  REQUIRE(info.libtorch == TORCH_VERSION);
  REQUIRE_FALSE(info.commit.empty());
  REQUIRE_FALSE(info.cuda.empty());
  REQUIRE_THAT(info.transports, test::contains("local"));
  REQUIRE_THAT(info.transports, test::contains("tcp"));
}

TEST_CASE("a lone --version is answered") {
  char program[] = "p", version[] = "--version", other[] = "--seed";
  char* alone[] = {program, version};
  char* more[] = {program, version, other};
  char* none[] = {program, other};
  REQUIRE(answered_version("p", 2, alone));
  REQUIRE_FALSE(answered_version("p", 3, more));
  REQUIRE_FALSE(answered_version("p", 2, none));
  REQUIRE_FALSE(answered_version("p", 1, none));
}

}  // namespace
}  // namespace tessera
