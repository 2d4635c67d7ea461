// SPDX-License-Identifier: MIT
#include "lib/comm/launch/launcher.h"

#include <array>
#include <charconv>
#include <cstdlib>

#include "lib/comm/launch/slurm_step.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int kMostRanks = 1 << 20;

// Environment variables of one launcher, detected when all its marks are set.
struct Launcher {
  const char* name;
  std::array<const char*, 2> marks;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  RendezvousMethod meeting;
};

// The innermost launcher first: torchrun runs under srun and mpirun, mpirun and MPICH's under
// Slurm.
// [Note: srun's PMI] srun --mpi=pmi2 sets PMI_RANK too; MPI_LOCALNRANKS is Hydra's alone.
constexpr Launcher kLaunchers[] = {
    {"torchrun",
     {"TORCHELASTIC_RUN_ID", "RANK"},
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     RendezvousMethod::kAgentStore},
    {"mpirun",
     {"OMPI_COMM_WORLD_RANK", nullptr},
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     RendezvousMethod::kMpi},
    {"hydra",
     {"PMI_RANK", "MPI_LOCALNRANKS"},
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     RendezvousMethod::kPmi},
    // SLURM_STEP_NUM_TASKS tells a job step from a batch script, which also has SLURM_PROCID and
    // SLURM_NTASKS but is one process.
    {"srun",
     {"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"},
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     nullptr,
     RendezvousMethod::kSlurmStep},
    {"environment",
     {"RANK", nullptr},
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     RendezvousMethod::kAddress},
    {"environment",
     {"WORLD_SIZE", nullptr},
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     RendezvousMethod::kAddress},
};

// Variables of launchers that give too little information to connect. Ignoring them would make each
// process a job of one rank.
constexpr const char* kForeign[] = {
    "PMI_RANK",           "PMIX_RANK",     "FLUX_TASK_RANK", "PALS_RANKID", "MV2_COMM_WORLD_RANK",
    "JSM_NAMESPACE_RANK", "ALPS_APP_RANK", "PMI_FD"};

class Reader {
 public:
  explicit Reader(const Environment& environment) : get_(environment) {}

  bool has(const char* name) const { return name != nullptr && get_(name).has_value(); }
  std::string text(const char* name) const { return get_(name).value_or(""); }

  // The variable as a number in [least, limit). Throws otherwise.
  int number(const char* name, int least, int limit) const {
    const auto value = get_(name);
    check(value.has_value(), ErrorCode::kInvalidArgument, "launch: the environment variable ", name,
          " is not set; set it, or start the program with mpirun, srun or torchrun");
    const auto parsed = number_if_any(name, least, limit);
    check(parsed.has_value(), ErrorCode::kInvalidArgument, "launch: ", name, "=", *value,
          " is not a number from ", least, " to ", limit - 1);
    return *parsed;
  }
  // Empty when unset or not a number in [least, limit).
  std::optional<int> number_if_any(const char* name, int least, int limit) const {
    const std::string value = text(name);
    const char* end = value.data() + value.size();
    int parsed = 0;
    const auto [rest, error] = std::from_chars(value.data(), end, parsed);
    const bool is_number = error == std::errc() && rest == end;
    return is_number && least <= parsed && parsed < limit ? std::optional(parsed) : std::nullopt;
  }

 private:
  const Environment& get_;
};

bool present(const Launcher& launcher, const Reader& variables) {
  for (const char* mark : launcher.marks) {
    if (mark != nullptr && !variables.has(mark)) return false;
  }
  return true;
}

bool is_loopback_name(const std::string& host) {
  return host.empty() || host == "localhost" || host.starts_with("127.") || host == "::1";
}

void read_local(const Launcher& launcher, const Reader& variables, Launch& launch) {
  LaunchInfo& info = launch.info;
  if (launch.meeting == RendezvousMethod::kSlurmStep) {
    const int nodes = variables.has("SLURM_STEP_NUM_NODES")
                          ? variables.number("SLURM_STEP_NUM_NODES", 1, kMostRanks)
                          : 1;
    const int node = variables.has("SLURM_NODEID") ? variables.number("SLURM_NODEID", 0, nodes) : 0;
    info.local_rank = variables.number(launcher.local_rank, 0, info.world_size);
    info.local_size = slurm::tasks_on_node(variables.text("SLURM_STEP_TASKS_PER_NODE"), node);
    if (info.local_size <= info.local_rank) info.local_size = (info.world_size + nodes - 1) / nodes;
    info.local_size = std::max(info.local_size, info.local_rank + 1);
    launch.one_host = nodes == 1;
    return;
  }
  launch.local_size_known = variables.has(launcher.local_size);
  launch.local_rank_known = launch.local_size_known || variables.has(launcher.local_rank);
  info.local_size = launch.local_size_known
                        ? variables.number(launcher.local_size, 1, info.world_size + 1)
                        : info.world_size;
  info.local_rank = launch.local_rank_known
                        ? variables.number(launcher.local_rank, 0, info.local_size)
                        : info.rank;
  launch.one_host = info.local_size == info.world_size &&
                    (launch.local_size_known || is_loopback_name(variables.text("MASTER_ADDR")));
}

// RANK and WORLD_SIZE that disagree with the launcher's own variables; "" for none.
std::string contradiction(const Launcher& launcher, const Reader& variables) {
  std::string text;
  const auto compare = [&](const char* theirs, const char* ours) {
    if (std::string(theirs) == ours || !variables.has(theirs)) return;
    const std::string a = variables.text(theirs), b = variables.text(ours);
    if (a == b) return;
    text += concat(text.empty() ? "" : ", ", theirs, "=", a, " against ", ours, "=", b);
  };
  compare("RANK", launcher.rank);
  compare("WORLD_SIZE", launcher.size);
  if (text.empty()) return "";
  return concat("launch: variables contradict each other: ", text,
                "; unset RANK and WORLD_SIZE, which ", launcher.name,
                " does not need, or start the program without ", launcher.name);
}

// Reads Open MPI's variables, and MASTER_ADDR and MASTER_PORT if mpirun passes them (-x).
void read_open_mpi(const Reader& variables, Launch& launch) {
  launch.job = concat("mpirun ", variables.text("PMIX_NAMESPACE"));
  launch.secret = variables.text("OMPI_MCA_orte_precondition_transports");
  const auto port = variables.number_if_any("MASTER_PORT", 1, 65536);
  if (!port) return;
  launch.host = variables.text("MASTER_ADDR");
  launch.port = *port;
}

void read_meeting(const Reader& variables, Launch& launch) {
  if (launch.info.world_size == 1) {
    launch.meeting = RendezvousMethod::kNone;
    return;
  }
  const std::string store = variables.text("TORCHELASTIC_USE_AGENT_STORE");
  if (launch.meeting == RendezvousMethod::kAgentStore) {
    launch.job = concat("torchrun ", variables.text("TORCHELASTIC_RUN_ID"), " restart ",
                        variables.text("TORCHELASTIC_RESTART_COUNT"));
    if (store != "True")
      launch.meeting = RendezvousMethod::kAddress;  // then rank 0 owns MASTER_PORT
  }
  if (launch.meeting == RendezvousMethod::kSlurmStep) {
    launch.job =
        concat("slurm ", variables.text("SLURM_JOB_ID"), ".", variables.text("SLURM_STEP_ID"));
  }
  if (launch.meeting == RendezvousMethod::kMpi) return read_open_mpi(variables, launch);
  if (launch.meeting == RendezvousMethod::kPmi) return;
  launch.host = variables.text("MASTER_ADDR");
  const bool needs_port = launch.meeting != RendezvousMethod::kSlurmStep;
  if (needs_port || variables.has("MASTER_PORT")) {
    launch.port = variables.number("MASTER_PORT", 1, 65536);
  }
  if (!launch.host.empty()) return;
  check(
      launch.meeting != RendezvousMethod::kAgentStore, ErrorCode::kInvalidArgument,
      "launch: TORCHELASTIC_USE_AGENT_STORE=True, but MASTER_ADDR is not set; torchrun sets both");
  if (launch.one_host) {
    launch.host = "127.0.0.1";
    return;
  }
  launch.host = slurm::first_host(variables.text("SLURM_STEP_NODELIST"));
  check(!launch.host.empty(), ErrorCode::kInvalidArgument,
        "launch: MASTER_ADDR is not set; set it to the name of rank 0's host on all ranks");
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

Launch read_launch(const Environment& environment) {
  const Reader variables(environment);
  Launch launch;
  for (const Launcher& launcher : kLaunchers) {
    if (!present(launcher, variables)) continue;
    launch.info.launcher = launcher.name;
    launch.meeting = launcher.meeting;
    launch.info.world_size = variables.number(launcher.size, 1, kMostRanks);
    launch.info.rank = variables.number(launcher.rank, 0, launch.info.world_size);
    read_local(launcher, variables, launch);
    launch.contradiction = contradiction(launcher, variables);
    read_meeting(variables, launch);
    return launch;
  }
  for (const char* mark : kForeign) {
    check(!variables.has(mark), ErrorCode::kInvalidArgument, "launch: ", mark, "=",
          variables.text(mark),
          " says that a launcher started this process, but not which of how many ranks it is; "
          "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or use mpirun, srun or torchrun");
  }
  return launch;
}

LaunchInfo detect_launch() {
  const Launch launch = read_launch(process_environment());
  check(launch.contradiction.empty(), ErrorCode::kInvalidArgument, launch.contradiction);
  return launch.info;
}

}  // namespace tessera
