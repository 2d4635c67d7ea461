// SPDX-License-Identifier: MIT
#include "lib/metrics/append_file.h"

#include <sys/resource.h>

#include <csignal>

#include "lib/core/file.h"
#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using metrics::AppendFile;

TEST_CASE("a file of records holds whole ones, also behind a disk that was full for a while") {
  const TempDir folder;
  const std::string path = folder.write("log", "older\n");
  AppendFile file(path);
  file.write("first\n");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{15, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &full);
  const std::string said =
      error_of(ErrorCode::kDataLoss, [&] { file.write("lost, half of it\n"); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(said == path + ": write failed (File too large); check the free space");
  CHECK(read_file(path) == "older\nfirst\n");
  file.write("second\n");
  CHECK(read_file(path) == "older\nfirst\nsecond\n");
  CHECK_THAT(error_of(ErrorCode::kDataLoss, [&] { AppendFile none(folder.path("none/log")); }),
             test::contains("cannot be opened for writing (No such file"));
}
