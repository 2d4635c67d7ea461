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

TEST_CASE("the bar fits a narrow window: fewer cells, then the end of the title") {
  const std::string title = "reading /data/a/long/way/down/squad.json";
  for (const size_t width : {79, 60, 45, 30, 20}) {
    const std::string text = progress_text(title, 0.4, 12, width);
    INFO(text);
    CHECK(text.size() <= width);
    CHECK(text.find("40 %") != std::string::npos);
  }
  CHECK(progress_text(title, 0.4, 12, 60) ==
        ".../a/long/way/down/squad.json [####......]  40 %  0:12 left");
}
