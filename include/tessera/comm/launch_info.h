// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Launch information of this process.
#include <string>

namespace tessera {

/// Rank, world size and launcher from the environment; see docs/guides/clusters.md.
struct LaunchInfo {
  /// "torchrun", "mpirun" (Open MPI), "hydra" (MPICH, Intel MPI), "srun", "environment" (RANK,
  /// WORLD_SIZE by hand), "threads" (in-process ranks) or "none" (one rank).
  std::string launcher = "none";
  int rank = 0;        ///< this process's rank in the job, from 0
  int world_size = 1;  ///< ranks of the job
  int local_rank = 0;  ///< index among the ranks of this host
  int local_size = 1;  ///< ranks on this host
};

}  // namespace tessera
