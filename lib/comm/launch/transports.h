// SPDX-License-Identifier: MIT
#pragma once
// The transports of this build; what was not built is not in the table.
#include <span>

#include "lib/comm/control/whereabouts.h"
#include "lib/comm/transport.h"

namespace tessera {

std::span<const Transport> transports();  // best first

// Where rank 0 listens, told by MPI: collective over the processes of the launcher.
using RendezvousExchange = Rendezvous (*)(const Rendezvous& of_rank_0);
// Null when MPI is not built, or is another one than the launcher's.
RendezvousExchange rendezvous_over_mpi(const LaunchInfo& launch);

// After the last communicator of the job; clean: no rank has failed.
void close_transports(bool clean);

}  // namespace tessera
