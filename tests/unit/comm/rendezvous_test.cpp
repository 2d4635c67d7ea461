// SPDX-License-Identifier: MIT
#include "lib/comm/launch/rendezvous.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lib/comm/control/control_client.h"
#include "lib/comm/control/hub.h"
#include "lib/comm/launch/pmi.h"
#include "lib/comm/launch/slurm_step.h"
#include "tests/support/ranks.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

namespace tessera {
namespace {

using control::ControlClient;
using control::Hub;
using test::require;

// Ranks of a job as threads, from rendezvous to an exchange.
void run_job_of(const std::function<Launch(int rank)>& launch_of, int size) {
  test::run_ranks(size, [&](Communicator& world) {
    const Launch launch = launch_of(world.rank());
    RendezvousAddress place = arrange_meeting(launch, nullptr, 20);
    std::unique_ptr<Hub> hub;
    if (place.listener) {
      hub = std::make_unique<Hub>(std::move(*place.listener), size, launch.job, place.secret, 20);
    }
    ControlClient client(place.rank_0, {world.rank(), size, launch.job}, 20,
                         std::make_shared<AbortSignal>());
    const auto all = client.exchange(std::to_string(world.rank()));
    require(all.at(size - 1) == std::to_string(size - 1), "an exchange");
    client.conclude("");
  });
}

Launch launch_of(int rank, int size, RendezvousMethod meeting, const std::string& job) {
  Launch launch;
  launch.info.rank = rank;
  launch.info.world_size = size;
  launch.meeting = meeting;
  launch.host = "127.0.0.1";
  launch.job = job;
  return launch;
}

// Several jobs at once, as started by mpirun without MPI in the build.
TEST_CASE("ranks of mpirun meet without MPI, on one host at a port that follows from the job") {
  const auto job = [](const std::string& name, const std::string& secret) {
    return [=](int rank) {
      Launch launch = launch_of(rank, 3, RendezvousMethod::kMpi, name);
      launch.host.clear();
      launch.secret = secret;
      return launch;
    };
  };
  const std::string own = std::to_string(getpid());
  std::thread other([&] { run_job_of(job("mpirun b" + own, "y"), 3); });
  run_job_of(job("mpirun a" + own, "x"), 3);
  other.join();
}

TEST_CASE("ranks of mpirun on several hosts and without MPI need an address") {
  Launch launch = launch_of(1, 2, RendezvousMethod::kMpi, "mpirun x");
  launch.one_host = false;
  launch.host.clear();
  REQUIRE_THROWS_WITH(arrange_meeting(launch, nullptr, 1), test::contains("mpirun -x MASTER_ADDR"));
}

// The store of a torchrun agent.
struct Agent {
  Agent() {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
  c10::intrusive_ptr<c10d::TCPStore> store;
};

TEST_CASE("ranks meet through the store of torchrun's agent, again after a restart") {
  const Agent agent;
  const auto start = [&](const std::string& job) {
    run_job_of(
        [&](int rank) {
          Launch launch = launch_of(rank, 3, RendezvousMethod::kAgentStore, job);
          launch.port = agent.store->getPort();
          return launch;
        },
        3);
  };
  start("torchrun x restart 0");
  start("torchrun x restart 1");
}

// Some rounds of torchrun do not count as restarts.
TEST_CASE("an address that an earlier round has left in the store is read again") {
  const Agent agent;
  const std::string job = "torchrun x restart 0";
  auto old = std::make_unique<control::Socket>(control::listen_at("127.0.0.1", 0));
  const std::string word = concat(control::port_of(*old), "!127.0.0.1!secret");
  agent.store->set(concat("tessera/", job, "/rank 0"), {word.begin(), word.end()});
  run_job_of(
      [&](int rank) {
        if (rank == 0) {  // arrives after another rank has read the old address
          const control::Socket caller(::accept(old->fd(), nullptr, nullptr));
          const std::string other = "220 another program listens here now\r\n";
          ::send(caller.fd(), other.data(), other.size(), MSG_NOSIGNAL);
          old.reset();
        }
        Launch launch = launch_of(rank, 3, RendezvousMethod::kAgentStore, job);
        launch.port = agent.store->getPort();
        return launch;
      },
      3);
}

TEST_CASE("a store that is not there is named") {
  Launch launch = launch_of(1, 2, RendezvousMethod::kAgentStore, "job");
  launch.port = control::port_of(control::listen_at("127.0.0.1", 0));  // closed again
  REQUIRE_THROWS_WITH(arrange_meeting(launch, nullptr, 20),
                      test::contains(concat("torchrun's store at 127.0.0.1:", launch.port)) &&
                          test::contains("MASTER_ADDR"));
  launch.host = "no-such-host.invalid";
  REQUIRE_THROWS_WITH(
      arrange_meeting(launch, nullptr, 20),
      test::contains("cannot resolve 'no-such-host.invalid'") && test::contains("MASTER_ADDR"));
}

TEST_CASE("ranks of a Slurm step meet without variables, also where its first port is taken") {
  const std::string job = "slurm 4711.0";
  const auto taken = control::try_listen("127.0.0.1", slurm::ports_of(job).front());
  run_job_of([&](int rank) { return launch_of(rank, 3, RendezvousMethod::kSlurmStep, job); }, 3);
}

TEST_CASE("a place of the user's: taken, unknown, elsewhere") {
  Launch launch = launch_of(0, 2, RendezvousMethod::kAddress, "");
  SECTION("free") {
    const int port = control::port_of(control::listen_at("127.0.0.1", 0));
    run_job_of(
        [&](int rank) {
          Launch mine = launch_of(rank, 2, RendezvousMethod::kAddress, "");
          mine.port = port;
          return mine;
        },
        2);
  }
  SECTION("a port that is taken") {
    const control::Socket other = control::listen_at("127.0.0.1", 0);
    launch.port = control::port_of(other);
    REQUIRE_THROWS_WITH(arrange_meeting(launch, nullptr, 20),
                        test::contains("choose another MASTER_PORT"));
  }
  SECTION("several hosts") {
    launch.one_host = false;
    launch.port = 29500;
    REQUIRE_THROWS_WITH(arrange_meeting(launch, nullptr, 20),
                        test::contains("have no secret") && test::contains("TESSERA_JOB_SECRET"));
    setenv("TESSERA_JOB_SECRET", "none", 1);
    launch.host = "no-such-host.invalid";
    CHECK_THROWS_WITH(arrange_meeting(launch, nullptr, 20),
                      test::contains("cannot resolve 'no-such-host.invalid'"));
    launch.host = "192.0.2.1";  // reserved for documentation, so unreachable
    CHECK_THROWS_WITH(arrange_meeting(launch, nullptr, 20),
                      test::contains("no address of this host"));
    unsetenv("TESSERA_JOB_SECRET");
  }
}

// Plays MPICH's process manager for a job of one process.
void manage(int fd) {
  std::map<std::string, std::string> answers{{"cmd=init", "cmd=response_to_init rc=0"},
                                             {"cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs_0"},
                                             {"cmd=put", "cmd=put_result rc=0 msg=success"},
                                             {"cmd=barrier_in", "cmd=barrier_out rc=0"},
                                             {"cmd=finalize", "cmd=finalize_ack rc=0"}};
  std::string line;
  for (char byte; ::read(fd, &byte, 1) == 1;) {
    if (byte != '\n') {
      line += byte;
      continue;
    }
    const size_t value = line.find("value=");
    if (value != std::string::npos) {
      answers["cmd=get"] = "cmd=get_result rc=0 msg=success " + line.substr(value);
    }
    const std::string answer = answers.at(line.substr(0, line.find(' '))) + "\n";
    if (::write(fd, answer.data(), answer.size()) < 0) return;
    line.clear();
  }
}

TEST_CASE("MPICH's process manager hands rank 0's place on") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  control::Socket mine(ends[0]), managers(ends[1]);
  setenv("PMI_FD", std::to_string(mine.fd()).c_str(), 1);
  std::thread manager([&] { manage(managers.fd()); });
  CHECK(broadcast_over_pmi(0, "4000!host!secret", 20) == "4000!host!secret");
  mine.shut_down();
  manager.join();
  CHECK_THROWS_WITH(broadcast_over_pmi(0, "x", 20), test::contains("process manager"));
  unsetenv("PMI_FD");
  CHECK_THROWS_WITH(broadcast_over_pmi(0, "x", 20), test::contains("not PMI_FD"));
}

TEST_CASE("the job's secret") {
  const TempDir folder;
  const std::string path = folder.write("secret", "ab c \n");
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  bool none = false;
  const auto secret = [&](std::map<std::string, std::string> variables) {
    return job_secret(
        [=](const std::string& name) -> std::optional<std::string> {
          if (!variables.contains(name)) return std::nullopt;
          return variables.at(name);
        },
        none);
  };
  REQUIRE(secret({}).empty());
  REQUIRE_FALSE(none);
  REQUIRE(secret({{"TESSERA_JOB_SECRET", "x y"}}) == "x y");
  REQUIRE(secret({{"TESSERA_JOB_SECRET_FILE", path}}) == "ab c ");
  REQUIRE(secret({{"TESSERA_JOB_SECRET", "none"}}).empty());
  REQUIRE(none);
  REQUIRE_THROWS_WITH(secret({{"TESSERA_JOB_SECRET_FILE", path + ".not"}}),
                      test::contains(".not cannot be read or is empty"));
  REQUIRE_THROWS_WITH(secret({{"TESSERA_JOB_SECRET", "x"}, {"TESSERA_JOB_SECRET_FILE", path}}),
                      test::contains("both set"));
  std::filesystem::permissions(path, std::filesystem::perms(0440));
  REQUIRE_THROWS_WITH(secret({{"TESSERA_JOB_SECRET_FILE", path}}),
                      test::contains("others than its owner; run: chmod 600 " + path));
}

TEST_CASE("the address for others is one of this host's, and can be named") {
  const auto named = [](const char* name) {
    setenv("TESSERA_HOST_ADDRESS", name, 1);
    std::string address;
    try {
      address = control::address_for_others("");
    } catch (const Error& error) {
      address = error.what();
    }
    unsetenv("TESSERA_HOST_ADDRESS");
    return address;
  };
  REQUIRE(named("192.0.2.7") == "192.0.2.7");
  REQUIRE_THAT(named("no-such-host.invalid"),
               test::contains("TESSERA_HOST_ADDRESS=no-such-host.invalid"));
  REQUIRE(control::is_loopback("127.0.1.1"));
  REQUIRE_FALSE(control::is_loopback("10.0.0.1"));
  REQUIRE(control::resolves_to_loopback("127.0.1.1"));
  REQUIRE_FALSE(control::resolves_to_loopback("192.0.2.7"));
}

}  // namespace
}  // namespace tessera
