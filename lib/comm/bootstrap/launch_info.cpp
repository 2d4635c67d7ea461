#include <cstdlib>

#include "tessera/comm/bootstrap.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

bool is_set(const char* name) { return std::getenv(name) != nullptr; }

// The variable as a number in [least, limit); fallback when it is not set, unless that is negative.
int number(const char* name, int least, int limit, int fallback = -1) {
  const char* text = std::getenv(name);
  if (text == nullptr) {
    check(fallback >= 0, ErrorCode::kInvalidArgument, "launch: the environment variable ", name,
          " is not set; set it, or start the program with mpirun, srun or torchrun");
    return fallback;
  }
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  check(end != text && *end == '\0' && least <= value && value < limit, ErrorCode::kInvalidArgument,
        "launch: ", name, "=", text, " is not a number from ", least, " to ", limit - 1);
  return static_cast<int>(value);
}

constexpr int kMostRanks = 1 << 20;

// SLURM_STEP_TASKS_PER_NODE is "2(x3),1" or "4"; without parsing nodes, only a uniform layout gives
// the local size.
int slurm_local_size(int world_size) {
  const int nodes = number("SLURM_STEP_NUM_NODES", 1, kMostRanks, 1);
  return (world_size + nodes - 1) / nodes;
}

}  // namespace

LaunchInfo detect_launch() {
  LaunchInfo info;
  if (is_set("OMPI_COMM_WORLD_RANK")) {
    info.launcher = "mpirun";
    info.world_size = number("OMPI_COMM_WORLD_SIZE", 1, kMostRanks);
    info.rank = number("OMPI_COMM_WORLD_RANK", 0, info.world_size);
    info.local_size = number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, info.world_size + 1);
    info.local_rank = number("OMPI_COMM_WORLD_LOCAL_RANK", 0, info.local_size);
  } else if (is_set("RANK") || is_set("WORLD_SIZE")) {
    info.launcher = "torchrun";
    info.world_size = number("WORLD_SIZE", 1, kMostRanks);
    info.rank = number("RANK", 0, info.world_size);
    info.local_size = number("LOCAL_WORLD_SIZE", 1, info.world_size + 1, info.world_size);
    info.local_rank = number("LOCAL_RANK", 0, info.local_size, info.rank % info.local_size);
  } else if (is_set("SLURM_PROCID") && is_set("SLURM_STEP_ID") && is_set("SLURM_STEP_NUM_TASKS")) {
    // A batch script has SLURM_PROCID and SLURM_NTASKS too, but is one process: only a step with
    // its own task count is many.
    info.launcher = "srun";
    info.world_size = number("SLURM_STEP_NUM_TASKS", 1, kMostRanks);
    info.rank = number("SLURM_PROCID", 0, info.world_size);
    info.local_size = slurm_local_size(info.world_size);
    info.local_rank = number("SLURM_LOCALID", 0, info.world_size);
    info.local_size = std::max(info.local_size, info.local_rank + 1);
  }
  return info;
}

}  // namespace tessera
