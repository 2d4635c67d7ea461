// SPDX-License-Identifier: MIT
#pragma once
// Transports compiled into this build.
#include <span>

#include "lib/comm/control/endpoints.h"
#include "lib/comm/transport.h"

namespace tessera {

std::span<const Transport> transports();  // best first

// Broadcast of rank 0's address over MPI; collective over the launcher's processes.
using RendezvousExchange = Rendezvous (*)(const Rendezvous& of_rank_0);
// Null when MPI is not built in, or belongs to another launcher.
RendezvousExchange rendezvous_over_mpi(const LaunchInfo& launch);

// Call after the job's last communicator is destroyed. clean: no rank has failed.
void close_transports(bool clean);

}  // namespace tessera
