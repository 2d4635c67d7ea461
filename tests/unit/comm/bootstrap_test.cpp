#include "tessera/comm/bootstrap.h"

#include <cstdlib>
#include <map>

#include "lib/comm/bootstrap/control_client.h"
#include "lib/comm/bootstrap/hub.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

namespace tessera {
namespace {

using control::ControlClient;
using control::Hub;
using test::require;

// Sets environment variables for one test; the launchers' own are removed.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& variables) {
    for (const char* name :
         {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
          "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS",
          "SLURM_STEP_NUM_NODES"}) {
      names_.emplace_back(name);
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }

 private:
  std::vector<std::string> names_;
};

TEST_CASE("the launcher is read from the environment") {
  SECTION("nothing set is one rank") {
    const Environment environment({});
    const LaunchInfo info = detect_launch();
    REQUIRE(info.launcher == "none");
    REQUIRE(info.world_size == 1);
  }
  SECTION("Open MPI") {
    const Environment environment({{"OMPI_COMM_WORLD_RANK", "5"},
                                   {"OMPI_COMM_WORLD_SIZE", "8"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
    const LaunchInfo info = detect_launch();
    REQUIRE(info.launcher == "mpirun");
    REQUIRE(info.rank == 5);
    REQUIRE(info.local_rank == 1);
    REQUIRE(info.local_size == 4);
  }
  SECTION("torchrun") {
    const Environment environment(
        {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}});
    REQUIRE(detect_launch().launcher == "torchrun");
    REQUIRE(detect_launch().local_rank == 1);
  }
  SECTION("a Slurm batch script is one process, a step is many") {
    std::map<std::string, std::string> batch = {
        {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}};
    {
      const Environment environment(batch);
      REQUIRE(detect_launch().world_size == 1);
    }
    batch["SLURM_STEP_ID"] = "0";
    batch["SLURM_STEP_NUM_TASKS"] = "4";
    batch["SLURM_PROCID"] = "2";
    batch["SLURM_LOCALID"] = "2";
    const Environment environment(batch);
    REQUIRE(detect_launch().launcher == "srun");
    REQUIRE(detect_launch().rank == 2);
    REQUIRE(detect_launch().local_size == 4);
  }
  SECTION("a variable that is missing or no rank is named") {
    {
      const Environment environment(std::map<std::string, std::string>{{"RANK", "3"}});
      REQUIRE_THROWS_WITH(detect_launch(), Catch::Contains("WORLD_SIZE is not set"));
    }
    const Environment environment(
        std::map<std::string, std::string>{{"RANK", "4"}, {"WORLD_SIZE", "4"}});
    REQUIRE_THROWS_WITH(detect_launch(), Catch::Contains("RANK=4 is not a number from 0 to 3"));
  }
}

TEST_CASE("differing texts are reported with ranks and lines, the same on all ranks") {
  test::run_ranks(4, [](Communicator& world) {
    CommunicatorChannel channel(world);
    require_same_on_all_ranks(channel, "the configuration", "a=1\nb=2\n");
    const std::string mine = world.rank() % 2 == 1 ? "a=1\nb=3\n" : "a=1\nb=2\n";
    const std::string message = test::require_error(
        ErrorCode::kInvalidArgument,
        [&] { require_same_on_all_ranks(channel, "the configuration", mine); }, "a difference");
    require(message.find("the configuration is not the same on all ranks: on rank 1, 3 line 2 is "
                         "'b=3' instead of 'b=2'") == 0,
            message);
  });
}

TEST_CASE("ranks print as ranges") {
  REQUIRE(rank_list({0}) == "0");
  REQUIRE(rank_list({1, 2, 3, 7}) == "1-3, 7");
}

// A hub and its ranks as threads of this process, over real sockets.
struct Star {
  explicit Star(int size, double timeout_s = 20) {
    control::Socket listener = control::listen_at("127.0.0.1", 0);
    port = control::port_of(listener);
    hub = std::make_unique<Hub>(std::move(listener), size, "secret", timeout_s);
  }
  std::unique_ptr<ControlClient> join(int rank, int size, const std::string& secret = "secret") {
    signal = std::make_shared<AbortSignal>();
    return std::make_unique<ControlClient>("127.0.0.1", port,
                                           ControlClient::Identity{rank, size, secret}, 20, signal);
  }
  int port = 0;
  std::unique_ptr<Hub> hub;
  std::shared_ptr<AbortSignal> signal;
};

TEST_CASE("the control channel exchanges, posts and concludes") {
  Star star(4);
  test::run_ranks(4, [&](Communicator& world) {
    const int rank = world.rank();
    auto signal = std::make_shared<AbortSignal>();
    ControlClient client("127.0.0.1", star.port, {rank, 4, "secret"}, 20, signal);
    for (int round = 0; round < 50; ++round) {
      const auto all = client.exchange(std::string(round * 1000, 'x') + std::to_string(rank));
      for (int r = 0; r < 4; ++r)
        require(all.at(r).back() == '0' + r, "round ", round, " rank ", r);
    }
    const int next = (rank + 1) % 4;
    client.post(concat("to ", next), concat("from ", rank));
    require(client.take(concat("to ", rank)) == concat("from ", (rank + 3) % 4), "a posted value");
    const auto endings = client.conclude("");
    require(endings == std::vector<std::string>(4, ""), "all ended well");
  });
}

TEST_CASE("a failed rank wakes the others and is told to all") {
  Star star(3);
  test::run_ranks(3, [&](Communicator& world) {
    const int rank = world.rank();
    auto signal = std::make_shared<AbortSignal>();
    ControlClient client("127.0.0.1", star.port, {rank, 3, "secret"}, 20, signal);
    const std::string status = "torn file";
    if (rank != 2) {
      const std::string message = test::require_error(
          ErrorCode::kUnavailable, [&] { client.exchange("waits for rank 2"); }, "exchange");
      require(message == "rank 2 failed", message);
    }
    const auto endings = client.conclude(rank == 2 ? status : "secondary");
    require(endings.at(2) == status, "the root cause reaches rank ", rank);
  });
}

TEST_CASE("a rank that dies without a word ends the job of the others") {
  Star star(3);
  test::run_ranks(3, [&](Communicator& world) {
    const int rank = world.rank();
    if (rank == 2) {  // says hello by hand, then closes the connection like a killed process
      control::Socket socket = control::connect_to("127.0.0.1", star.port, 20);
      const auto challenge = control::receive_frame(socket);
      control::send_frame(
          socket, control::Kind::kHello,
          control::pack({"tessera 1", control::proof_of(challenge->payload, "secret", 2), "2", "3",
                         "lost-host"}));
      require(control::receive_frame(socket)->kind == control::Kind::kWelcome, "welcome");
      return;
    }
    auto signal = std::make_shared<AbortSignal>();
    ControlClient client("127.0.0.1", star.port, {rank, 3, "secret"}, 20, signal);
    const std::string message = test::require_error(
        ErrorCode::kUnavailable, [&] { client.exchange(""); }, "exchange");
    require(message == "rank 2 (host lost-host) has died", message);
    require(client.conclude("secondary").at(2) == "?", "a dead rank has no status");
  });
}

TEST_CASE("ranks that cannot be connected are named") {
  SECTION("missing") {
    Star star(4, 0.3);
    REQUIRE_THROWS_WITH(star.join(0, 4), Catch::Contains("rank 1-3 of 4 did not connect"));
  }
  SECTION("another world size") {
    Star star(4);
    REQUIRE_THROWS_WITH(star.join(1, 3), Catch::Contains("rank 1 on host") &&
                                             Catch::Contains("world size 3, rank 0 with 4"));
  }
  SECTION("twice the same rank") {
    Star star(3);
    std::thread first([&] {
      auto signal = std::make_shared<AbortSignal>();
      try {
        ControlClient("127.0.0.1", star.port, {1, 3, "secret"}, 20, signal);
      } catch (const Error&) {  // both are told
      }
    });
    auto signal = std::make_shared<AbortSignal>();
    REQUIRE_THROWS_WITH(ControlClient("127.0.0.1", star.port, {1, 3, "secret"}, 20, signal),
                        Catch::Contains("two processes say they are rank 1"));
    first.join();
  }
  SECTION("another secret") {
    Star star(2, 0.5);
    REQUIRE_THROWS_WITH(star.join(1, 2, "guess"), Catch::Contains("job secret differs"));
  }
  SECTION("a busy port") {
    const control::Socket listener = control::listen_at("127.0.0.1", 0);
    REQUIRE_THROWS_WITH(control::listen_at("127.0.0.1", control::port_of(listener)),
                        Catch::Contains("choose another MASTER_PORT"));
  }
}

}  // namespace
}  // namespace tessera
