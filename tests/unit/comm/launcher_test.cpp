// SPDX-License-Identifier: MIT
#include "lib/comm/launch/launcher.h"

#include <map>

#include "lib/comm/launch/slurm_step.h"
#include "tessera/core/error.h"
#include "tests/support/test.hpp"

namespace tessera {
namespace {

using Variables = std::map<std::string, std::string>;

Launch read(const Variables& variables) {
  return read_launch([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

// Identity of this process by its launcher.
std::string told(const LaunchInfo& info) {
  return concat(info.launcher, ": rank ", info.rank, " of ", info.world_size, ", ", info.local_rank,
                " of ", info.local_size, " on its host");
}

const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "5"},
                         {"OMPI_COMM_WORLD_SIZE", "8"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                         {"PMIX_RANK", "5"}};
const Variables kHydra{{"PMI_RANK", "1"},
                       {"PMI_SIZE", "2"},
                       {"PMI_FD", "6"},
                       {"MPI_LOCALRANKID", "1"},
                       {"MPI_LOCALNRANKS", "2"}};
const Variables kTorchrun{{"RANK", "3"},
                          {"WORLD_SIZE", "4"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "node1"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "abc"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Variables kBatch{
    {"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "5"}, {"SLURM_LOCALID", "0"}};
const Variables kStep = with(kBatch, {{"SLURM_STEP_ID", "1"},
                                      {"SLURM_STEP_NUM_TASKS", "5"},
                                      {"SLURM_STEP_NUM_NODES", "3"},
                                      {"SLURM_STEP_NODELIST", "n[3-5]"},
                                      {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                                      {"SLURM_PROCID", "2"},
                                      {"SLURM_NODEID", "1"}});

TEST_CASE("nothing set is one rank") {
  const Launch launch = read({});
  REQUIRE(launch.info.launcher == "none");
  REQUIRE(launch.info.world_size == 1);
  REQUIRE(launch.meeting == RendezvousMethod::kNone);
}

TEST_CASE("every launcher is told by its variables") {
  SECTION("Open MPI") {
    const Launch launch = read(kOpenMpi);
    REQUIRE(told(launch.info) == "mpirun: rank 5 of 8, 1 of 4 on its host");
    REQUIRE(launch.meeting == RendezvousMethod::kMpi);
    REQUIRE_FALSE(launch.one_host);
  }
  SECTION("MPICH and Intel MPI") {
    const Launch launch = read(kHydra);
    REQUIRE(told(launch.info) == "hydra: rank 1 of 2, 1 of 2 on its host");
    REQUIRE(launch.meeting == RendezvousMethod::kPmi);
    REQUIRE(launch.one_host);
  }
  SECTION("torchrun, alone or as a task of srun") {
    for (const Variables& outer : {Variables{}, kStep}) {
      const Launch launch = read(with(outer, kTorchrun));
      REQUIRE(told(launch.info) == "torchrun: rank 3 of 4, 1 of 2 on its host");
      REQUIRE(launch.meeting == RendezvousMethod::kAgentStore);
      REQUIRE(launch.host == "node1");
      REQUIRE(launch.port == 29500);
      REQUIRE(launch.job == "torchrun abc restart 2");
      REQUIRE(launch.contradiction.empty());
      REQUIRE_FALSE(launch.one_host);
    }
  }
  SECTION("torchrun that leaves MASTER_PORT to rank 0") {
    REQUIRE(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).meeting ==
            RendezvousMethod::kAddress);
  }
  SECTION("a Slurm batch script is one process") {
    REQUIRE(read(kBatch).info.world_size == 1);
    REQUIRE(read(kBatch).info.launcher == "none");
  }
  SECTION("a Slurm step is many") {
    const Launch launch = read(kStep);
    REQUIRE(told(launch.info) == "srun: rank 2 of 5, 0 of 2 on its host");
    REQUIRE(launch.meeting == RendezvousMethod::kSlurmStep);
    REQUIRE(launch.host == "n3");
    REQUIRE(launch.port == 0);
    REQUIRE(launch.job == "slurm 7.1");
    REQUIRE_FALSE(launch.one_host);
  }
  SECTION("a Slurm step with an address and a port of the user's") {
    const Launch launch = read(with(kStep, {{"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "4000"}}));
    REQUIRE(launch.info.launcher == "srun");
    REQUIRE(launch.host == "10.0.0.7");
    REQUIRE(launch.port == 4000);
  }
  SECTION("srun --mpi=pmi2 is Slurm, Hydra within Slurm is Hydra") {
    REQUIRE(read(with(kStep, {{"PMI_RANK", "2"}, {"PMI_SIZE", "5"}})).info.launcher == "srun");
    REQUIRE(read(with(kStep, kHydra)).info.launcher == "hydra");
    REQUIRE(read(with(kStep, kOpenMpi)).info.launcher == "mpirun");
  }
  SECTION("variables by hand") {
    const Launch launch =
        read({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "9"}});
    REQUIRE(launch.info.launcher == "environment");
    REQUIRE(launch.meeting == RendezvousMethod::kAddress);
    REQUIRE_FALSE(launch.one_host);
    REQUIRE_FALSE(launch.local_size_known);
    REQUIRE(read({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "9"}}).one_host);
  }
}

TEST_CASE("half-set variables are refused by name") {
  const auto refused = [](const Variables& variables, const std::string& named) {
    REQUIRE_THROWS_WITH(read(variables), test::contains(named));
  };
  refused({{"RANK", "3"}}, "WORLD_SIZE is not set");
  refused({{"WORLD_SIZE", "3"}}, "RANK is not set");
  refused({{"RANK", "4"}, {"WORLD_SIZE", "4"}}, "RANK=4 is not a number from 0 to 3");
  refused({{"RANK", "1x"}, {"WORLD_SIZE", "4"}}, "RANK=1x is not a number");
  refused({{"RANK", "1"}, {"WORLD_SIZE", "4"}}, "MASTER_PORT is not set");
  refused({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_PORT", "99999"}}, "MASTER_PORT=99999");
  refused(without(kTorchrun, "LOCAL_RANK"), "LOCAL_RANK is not set");
  refused(without(kTorchrun, "MASTER_ADDR"), "MASTER_ADDR is not set");
  refused(without(kTorchrun, "MASTER_PORT"), "MASTER_PORT is not set");
  refused(without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE is not set");
  refused(without(kHydra, "PMI_SIZE"), "PMI_SIZE is not set");
  refused(without(kStep, "SLURM_LOCALID"), "SLURM_LOCALID is not set");
  refused(without(kStep, "SLURM_STEP_NODELIST"), "MASTER_ADDR is not set");
}

TEST_CASE("launchers that tell too little are refused, and not taken for one rank") {
  REQUIRE_THROWS_WITH(read({{"PMIX_RANK", "0"}}), test::contains("PMIX_RANK=0 says"));
  REQUIRE_THROWS_WITH(read({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}), test::contains("PMI_RANK=1"));
  const Variables named{
      {"PMIX_RANK", "0"}, {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "9"}};
  REQUIRE(read(named).info.world_size == 2);
}

TEST_CASE("variables that contradict the launcher are named; its own count") {
  for (const Variables& launcher : {kStep, kOpenMpi, kHydra}) {
    const Launch alone = read(launcher);
    REQUIRE(alone.contradiction.empty());
    const std::string rank = std::to_string(alone.info.rank);
    const std::string size = std::to_string(alone.info.world_size);
    REQUIRE(read(with(launcher, {{"RANK", rank}, {"WORLD_SIZE", size}})).contradiction.empty());

    const Launch launch = read(with(launcher, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
    REQUIRE(launch.info.rank == alone.info.rank);
    REQUIRE(launch.info.world_size == alone.info.world_size);
    REQUIRE_THAT(launch.contradiction, test::contains("RANK=0 against") &&
                                           test::contains("WORLD_SIZE=1 against") &&
                                           test::contains("unset RANK and WORLD_SIZE"));
  }
  REQUIRE_THAT(read(with(kStep, {{"RANK", "0"}})).contradiction,
               test::contains("RANK=0 against SLURM_PROCID=2"));
}

TEST_CASE("Slurm's notations") {
  REQUIRE(slurm::first_host("login") == "login");
  REQUIRE(slurm::first_host("login,n3") == "login");
  REQUIRE(slurm::first_host("n[03-05,7],login") == "n03");
  REQUIRE(slurm::first_host("n[7,9-11]") == "n7");
  REQUIRE(slurm::first_host("n[7]-ib") == "n7-ib");
  REQUIRE(slurm::first_host("r[2-3]n[1-8]") == "r2n1");
  REQUIRE(slurm::first_host("") == "");

  REQUIRE(slurm::tasks_on_node("4", 0) == 4);
  REQUIRE(slurm::tasks_on_node("2(x3),1", 2) == 2);
  REQUIRE(slurm::tasks_on_node("2(x3),1", 3) == 1);
  for (const char* wrong : {"", "x", "2(x", "2(x3", "2,", "2;1"}) {
    REQUIRE(slurm::tasks_on_node(wrong, 3) == 0);
  }

  const std::vector<int> ports = slurm::ports_of("slurm 7.1");
  REQUIRE(ports == slurm::ports_of("slurm 7.1"));
  REQUIRE(ports != slurm::ports_of("slurm 7.2"));
  for (const int port : ports) REQUIRE((1024 < port && port < 32768));
}

}  // namespace
}  // namespace tessera
