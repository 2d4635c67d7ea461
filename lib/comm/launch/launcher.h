// SPDX-License-Identifier: MIT
#pragma once
// Parses a launcher's environment variables into rank, world size and rendezvous.
#include <functional>
#include <optional>
#include <string>

#include "tessera/comm/bootstrap.h"

namespace tessera {

// A variable's value; empty when unset. Replaced by a map in tests.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

// How ranks learn the address at which rank 0 listens.
enum class RendezvousMethod {
  kNone,        // a single rank
  kAddress,     // rank 0 listens at MASTER_ADDR:MASTER_PORT
  kAgentStore,  // torchrun's agent keeps a store at MASTER_ADDR:MASTER_PORT
  kSlurmStep,   // address and ports derived from the step
  kMpi,         // an MPI broadcast; without MPI in the build as kAddress or kSlurmStep
  kPmi,         // the process manager's key-value space
};

struct Launch {
  LaunchInfo info;
  RendezvousMethod meeting = RendezvousMethod::kNone;
  bool one_host = true;
  // False: not told by the launcher, so exchanged between ranks.
  bool local_rank_known = true, local_size_known = true;
  std::string host;    // address of rank 0 or the store; empty: unknown
  int port = 0;        // 0: unknown
  std::string job;     // identity of the job among others that use the same address
  std::string secret;  // known to this job's ranks only; empty: none
  // Variables that contradict the launcher. Ranks still use the launcher's values, so that they
  // connect and all get the error.
  std::string contradiction;
};

// Throws Error(kInvalidArgument) with the variable that is missing or out of range, or whose
// launcher gives too little information to connect.
Launch read_launch(const Environment& environment);

}  // namespace tessera
