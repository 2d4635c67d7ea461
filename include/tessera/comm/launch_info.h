// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Who this process is among those of its job.
#include <string>

namespace tessera {

/// What the environment says about this process, see docs/guides/clusters.md.
struct LaunchInfo {
  /// "torchrun", "mpirun" (Open MPI), "hydra" (MPICH, Intel MPI), "srun", "environment" (RANK,
  /// WORLD_SIZE by hand), "threads" (in-process ranks) or "none" (one rank).
  std::string launcher = "none";
  int rank = 0;        ///< this rank's number in the job, from 0
  int world_size = 1;  ///< ranks of the job
  int local_rank = 0;  ///< among the ranks of this host
  int local_size = 1;  ///< ranks on this host
};

}  // namespace tessera
