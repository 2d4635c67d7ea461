// SPDX-License-Identifier: MIT
#include "lib/run/rehearsal_progress.h"

#include <fstream>

#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::programs;

TEST_CASE("a rehearsal sees that a run went on, also when that has saved again by then") {
  const TempDir dir;
  const auto write = [&](const std::string& text) {
    std::ofstream(dir.path("metrics.jsonl"), std::ios::app) << text;
  };
  const auto steps = [&](int first, int last) {
    for (int step = first; step <= last; ++step) {
      write(
          concat(R"({"event":"step","step":)", step, R"(,"loss":2.5,"step_time_s":0.001})", "\n"));
    }
  };
  const auto progress = [&] { return rehearsal_progress(dir.path(".")); };
  CHECK_FALSE(progress().has_gone_on_from(6));  // no file
  write("{\"event\":\"run_start\"}\n");
  steps(1, 13);
  write("{\"event\":\"checkpoint\",\"bytes\":1}\n");
  write("{\"event\":\"step\",\"step\":14,");  // a killed run's last line
  CHECK(progress().last() == 13);
  CHECK(progress().saved.has_value());
  CHECK_FALSE(progress().has_gone_on_from(6));

  write("\"loss\":1,\"step_time_s\":1}\n{\"event\":\"run_start\"}\n");
  write("{\"event\":\"checkpoint\",\"restored_from\":\"x\"}\n");
  CHECK_FALSE(progress().has_gone_on_from(6));
  steps(7, 12);
  CHECK(progress().has_gone_on_from(6));
  CHECK_FALSE(progress().saved.has_value());
  write("{\"event\":\"checkpoint\",\"bytes\":1}\n");
  CHECK(progress().saved.has_value());
  CHECK(progress().has_gone_on_from(6));
  CHECK(progress().steps.at(7).loss == 2.5);
}
