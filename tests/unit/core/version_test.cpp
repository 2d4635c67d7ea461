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

TEST_CASE("what --version answers begins with the program and its version") {
  const std::string text = version_text("tessera-env");
  REQUIRE(text.starts_with("tessera-env " + build_info().version + "\ncommit "));
  REQUIRE_THAT(text, test::contains("\nLibTorch    " TORCH_VERSION "\n"));
}

}  // namespace
}  // namespace tessera
