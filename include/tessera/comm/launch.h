// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The outermost run of a program: the same code for one process, in-process ranks, mpirun, srun
/// and torchrun.
#include <functional>
#include <string>

#include "tessera/comm/bootstrap.h"

namespace tessera {

/// How run_job() connects the ranks.
struct JobOptions {
  int ranks = 0;  ///< in-process ranks (threads, CPU); 0: one rank a process, as launched
  std::string transport = "auto";  ///< as Bootstrap::connect() takes it
  /// compare every collective across ranks before it runs, see checked.h
  bool debug_collectives = false;
};

/// What one rank of a job gets. world and control live until fn returns.
using JobFunction =
    std::function<void(Communicator& world, const LaunchInfo& launch, ControlChannel& control)>;

/// Connects the ranks and runs fn on each; LibTorch's threads are the host's cores over its ranks
/// unless OMP_NUM_THREADS is set. When fn throws on a rank, every communicator of the job
/// is aborted so that nobody waits for ever, each distinct error is logged once ("ranks 1-7: same")
/// and the exit code of its root cause is returned on every rank; peers' errors that follow from it
/// do not count. LibTorch's and the allocator's out-of-memory errors give exit code 3, other
/// foreign exceptions 70. Return the value from main.
int run_job(const JobOptions& options, const JobFunction& fn);
/// The same for a program that needs the ranks alone.
int run_job(const JobOptions& options, const std::function<void(Communicator& world)>& fn);

}  // namespace tessera
