// SPDX-License-Identifier: MIT
#include "lib/comm/operation_log.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lib/comm/operation_scope.h"
#include "tessera/core/json.h"
#include "tests/support/test.hpp"

namespace tessera {
namespace {

TEST_CASE(
    "the last operations of a rank are kept, with what they were for, in memory of a fixed size") {
  const auto log = std::make_shared<OperationLog>(3);
  const int world = log->join("world", 3, 8);
  const std::string folder = std::filesystem::temp_directory_path() / "tessera_operation_log";
  std::filesystem::remove_all(folder);
  std::vector<LoggedCall> calls;
  {
    const InPhase phase("backward");
    note_output_folder(folder);
    for (int i = 0; i < 300; ++i) {
      note_step(i / 100);
      const std::string name = concat("h.", i, ".weight\n", std::string(200, 'x'));
      const ForTensor of(name);
      calls.emplace_back(log, log->add(world, {.operation = "all_reduce",
                                               .suffix = ", sum",
                                               .dtype = at::kBFloat16,
                                               .count = i,
                                               .sequence = i}));
      if (i < 298) calls.back().ended();
    }
  }
  calls[298].started();
  calls[0].ended();  // overwritten long ago: no other record changes
  const RankStatus status = log->status(nullptr);
  CHECK(status.waiting.sequence == 298);
  CHECK(status.recent.front().sequence == 299);
  CHECK_THAT(status.waiting.describe(),
             test::starts_with("all_reduce(298 x BFloat16, sum) of h.298.weight?xxx") &&
                 test::ends_with("x (call 298 of world), step 2, backward"));
  CHECK(RankStatus::unpack(status.pack()).pack() == status.pack());

  log->fail("rank 1 (host a) has died");
  log->fail("a later sentence");
  CHECK(log->failure() == "rank 1 (host a) has died");
  REQUIRE(log->path() == folder + "/operations-rank-3.jsonl");
  std::ifstream file(log->path());
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);)
    lines.push_back(Json::parse(line, {}, "a line"));
  REQUIRE(lines.size() == OperationLog::kRecords);
  CHECK(lines.front().at("number").as_int64() == 45);
  CHECK(lines.front().at("bytes").as_int64() == 88);
  CHECK(lines[253].at("state").as_string() == "done");
  CHECK(lines[254].at("state").as_string() == "started");
  CHECK(lines[255].at("state").as_string() == "enqueued");
  CHECK(lines[255].at("rank").as_int64() == 3);
  CHECK(lines[255].at("step").as_int64() == 2);
  CHECK(lines[255].at("phase").as_string() == "backward");
  CHECK(lines[255].at("dtype").as_string() == "BFloat16");
  CHECK_FALSE(lines[255].contains("started_unix_s"));
  std::filesystem::remove_all(folder);
}

TEST_CASE("a thread that was told nothing speaks for its rank's phase") {
  const auto log = std::make_shared<OperationLog>(0);
  const int world = log->join("world", 0, 2);
  note_step(7);
  {
    const InPhase phase("backward");
    log->add(world, {.operation = "barrier"});
  }
  std::thread([&] { log->add(world, {.operation = "barrier", .sequence = 1}); }).join();
  CHECK(log->status(nullptr).recent.front().phase == "backward");
  CHECK(log->status(nullptr).recent.front().step == 7);
  log->add(world, {.operation = "barrier", .sequence = 2});
  CHECK(log->status(nullptr).recent.front().phase == "start");
  note_step(0);
}

}  // namespace
}  // namespace tessera
