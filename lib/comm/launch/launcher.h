// SPDX-License-Identifier: MIT
#pragma once
// Turns the variables of a launcher into who this process is and how it finds the other ranks.
#include <functional>
#include <optional>
#include <string>

#include "tessera/comm/bootstrap.h"

namespace tessera {

// A variable's value; empty when it is not set. Tests hand in a map.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

// How the ranks learn where rank 0 listens.
enum class Meeting {
  kNone,        // one rank
  kAddress,     // rank 0 listens at MASTER_ADDR:MASTER_PORT
  kAgentStore,  // torchrun's agent keeps a store at MASTER_ADDR:MASTER_PORT
  kSlurmStep,   // address and ports follow from the step
  kMpi,         // an MPI broadcast; in builds without MPI as kAddress or kSlurmStep
  kPmi,         // the process manager's key-value space
};

struct Launch {
  LaunchInfo info;
  Meeting meeting = Meeting::kNone;
  bool one_host = true;
  // False: the launcher does not say, and the ranks have to find out.
  bool local_rank_known = true, local_size_known = true;
  std::string host;    // where rank 0 or the store is; empty: not said
  int port = 0;        // 0: not said
  std::string job;     // what tells this job from others that meet at the same place
  std::string secret;  // that the launcher gave to this job's ranks alone; empty: none
  // Variables that contradict the launcher. The identity above is the launcher's, so that the ranks
  // can still be connected and all told.
  std::string contradiction;
};

// Throws Error(kInvalidArgument) naming the variable that is missing, is no number in range, or
// belongs to a launcher that tells too little to connect its processes.
Launch read_launch(const Environment& environment);

}  // namespace tessera
