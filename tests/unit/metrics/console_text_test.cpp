// SPDX-License-Identifier: MIT
#include "lib/metrics/console_text.h"

#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::metrics;

TEST_CASE("lines leave out the same parts, whatever the blanks behind their last number") {
  const auto line = [](const std::string& last) {
    return fitted({{"step 1", 100}, {"lr 1", 2}, {last, 5}}, 17);
  };
  CHECK(line("9.99 ms") == "step 1  9.99 ms");
  CHECK(line("9 s    ") == "step 1  9 s");
  CHECK(line("9 s") == "step 1  lr 1  9 s");
}

TEST_CASE("a run of one rank names no mesh, and no launcher where none was") {
  Event event = {"run_start",
                 {{"strategy", std::string("single")},
                  {"world_size", int64_t{1}},
                  {"device", std::string("cpu")},
                  {"transport", std::string("local")},
                  {"launcher", std::string("none")}}};
  const auto text_of = [&](const std::string& title) {
    for (const TextRow& row : found_rows(event)) {
      if (row.title == title) return row.text;
    }
    return std::string();
  };
  CHECK(text_of("layout") == "single on 1 rank");
  CHECK(text_of("device") == "cpu");
  event = {"run_start",
           {{"strategy", std::string("ddp")},
            {"world_size", int64_t{4}},
            {"pp", int64_t{2}},
            {"dp", int64_t{2}},
            {"tp", int64_t{1}},
            {"device", std::string("cpu")},
            {"transport", std::string("mpi")},
            {"launcher", std::string("mpirun")}}};
  CHECK(text_of("layout") == "ddp on 4 ranks: pipeline 2 x data 2 x tensor 1");
  CHECK(text_of("device") == "cpu, mpi, launched by mpirun");
  event.fields.back().second = std::string("threads");
  CHECK(text_of("device") == "cpu, ranks are threads");
}
