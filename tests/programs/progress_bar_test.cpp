// SPDX-License-Identifier: MIT
#include "lib/run/progress_bar.h"

#include "tests/support/test.hpp"

using tessera::programs::progress_text;

TEST_CASE("the bar shows share and time left") {
  CHECK(progress_text("reading a.txt", 0.4, 72.4) ==
        "reading a.txt [############..................]  40 %  1:12 left");
  CHECK(progress_text("a", 0, -1) == "a [" + std::string(30, '.') + "]   0 %");
  CHECK(progress_text("a", 1.2, 0) == "a [##############################] 100 %  0:00 left");
}
