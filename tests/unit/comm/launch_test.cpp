// SPDX-License-Identifier: MIT
#include "tessera/comm/launch.h"

#include <atomic>
#include <chrono>
#include <future>

#include "tessera/core/json.h"
#include "tests/support/ranks.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

namespace tessera {
namespace {

TEST_CASE("a job of threads has a world, a launch and a control channel") {
  std::atomic<int> runs{0};
  const int code = run_job(
      {.ranks = 3}, [&](Communicator& world, const LaunchInfo& launch, ControlChannel& control) {
        test::require(launch.launcher == "threads" && launch.world_size == 3 &&
                          launch.rank == world.rank() && control.rank() == world.rank(),
                      "who am I");
        const auto all = control.exchange(std::string(world.rank(), 'x'));
        test::require(all.size() == 3 && all[2] == "xx" && all[0].empty(), "exchange");
        test::require(world.bytes_sent() == 0, "control is not counted as traffic");
        ++runs;
      });
  REQUIRE(code == 0);
  REQUIRE(runs == 3);
}

TEST_CASE("the exit code is the root cause's") {
  const auto job = [](const std::function<void()>& fails) {
    return run_job({.ranks = 4}, [&](Communicator& world, const LaunchInfo&, ControlChannel&) {
      if (world.rank() == 2) fails();
      world.barrier();
    });
  };
  REQUIRE(job([] { fail(ErrorCode::kDataLoss, "torn"); }) == 4);
  REQUIRE(job([] { fail(ErrorCode::kPreempted, "signal"); }) == 75);
  REQUIRE(job([] { throw std::bad_alloc(); }) == 3);
  REQUIRE(job([] { throw std::runtime_error("foreign"); }) == 70);
  REQUIRE(job([] { fail(ErrorCode::kUnavailable, "lost peer"); }) == 5);
}

TEST_CASE("ranks hear of a failure before the failed one unwinds") {
  std::promise<void> begun, heard;
  auto has_begun = begun.get_future(), is_heard = heard.get_future();
  bool in_time = false;
  struct SlowToEnd {
    ~SlowToEnd() {
      in_time = heard.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    }
    std::future<void>& heard;
    bool& in_time;
  };
  const int code =
      run_job({.ranks = 2}, [&](Communicator& world, const LaunchInfo&, ControlChannel&) {
        if (world.rank() == 1) {
          has_begun.wait();
          const SlowToEnd slow_to_end{is_heard, in_time};
          fail(ErrorCode::kDataLoss, "torn");
        }
        begun.set_value();
        try {
          world.barrier();
        } catch (const Error&) {
          heard.set_value();
          throw;
        }
      });
  REQUIRE(code == 4);
  REQUIRE(in_time);
}

TEST_CASE("one process is a world of one, whatever the transport it may use") {
  for (const std::string transport : {"auto", "local"}) {
    const int code = run_job({.transport = transport}, [&](Communicator& world, const LaunchInfo&,
                                                           ControlChannel& control) {
      test::require(world.size() == 1 && control.exchange("a") == std::vector<std::string>{"a"},
                    "one rank");
    });
    REQUIRE(code == 0);
  }
}

TEST_CASE("torchrun's agent is told the cause in the file it names") {
  const TempDir dir;
  const std::string path = dir.path("error.json");
  setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), /*overwrite=*/1);
  const JobFunction torn = [](Communicator&, const LaunchInfo&, ControlChannel&) {
    fail(ErrorCode::kDataLoss, "\"a\" is torn");
  };
  const int code = run_job({.transport = "local"}, torn);
  unsetenv("TORCHELASTIC_ERROR_FILE");
  REQUIRE(code == 4);
  const Json message = Json::parse_file(path).at("message");
  REQUIRE(message.at("message").as_string().ends_with(": \"a\" is torn"));
  REQUIRE(message.at("errorCode").as_int64() == 4);
  // torchrun parses it as an integer in a string.
  REQUIRE(std::stoll(message.at("extraInfo").at("timestamp").as_string()) > 1'700'000'000);
}

TEST_CASE("a transport that is not there is a usage error") {
  const JobFunction nothing = [](Communicator&, const LaunchInfo&, ControlChannel&) {};
  REQUIRE(run_job({.transport = "pigeon"}, nothing) == 2);
  REQUIRE(run_job({.ranks = 2, .transport = "mpi"}, nothing) == 2);
  REQUIRE(run_job({.ranks = -1}, nothing) == 2);
}

}  // namespace
}  // namespace tessera
