// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// run_job(): entry point of a program, the same for one process, in-process ranks, mpirun, srun
/// and torchrun.
#include <functional>
#include <string>

#include "tessera/comm/bootstrap.h"

namespace tessera {

/// Number of ranks and transport of run_job().
struct JobOptions {
  int ranks = 0;  ///< in-process ranks (threads, CPU); 0: one rank a process, as launched
  std::string transport = "auto";  ///< as Bootstrap::connect() takes it
  /// compare every collective across ranks before it runs, see checked.h
  bool debug_collectives = false;
};

/// Function that each rank of a job runs. world and control live until it returns.
using JobFunction =
    std::function<void(Communicator& world, const LaunchInfo& launch, ControlChannel& control)>;

/// Connects the ranks and runs fn on each; main returns its result. LibTorch's threads are the
/// host's cores divided by its ranks, unless OMP_NUM_THREADS is set. When fn throws on a rank,
/// every communicator of the job is aborted. Each distinct error is logged once ("ranks 1-7:
/// same"). Every rank returns the exit code of the root cause; errors that follow from it do not
/// count. Out-of-memory errors of LibTorch and the allocator give exit code 3, other foreign
/// exceptions 70.
int run_job(const JobOptions& options, const JobFunction& fn);
/// run_job() for a program that needs only the communicator.
int run_job(const JobOptions& options, const std::function<void(Communicator& world)>& fn);

}  // namespace tessera
