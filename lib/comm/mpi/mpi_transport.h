// SPDX-License-Identifier: MIT
#pragma once
// The MPI transport's entries of the table of transports.
#include "lib/comm/control/whereabouts.h"
#include "lib/comm/transport.h"

namespace tessera::mpi {

// Has the launcher of this MPI started the processes?
bool belongs_to(const LaunchInfo& launch);
std::string unusable_because(const LaunchInfo& launch);
std::unique_ptr<Communicator> connect(const TransportContext& context);
std::string library();  // "Open MPI v4.1.4", as it is loaded
Rendezvous exchange_rendezvous(const Rendezvous& of_rank_0);
// Finalizes MPI if tessera has initialised it and no rank has failed: after a failure MPI_Finalize
// could wait for ever.
void close(bool clean);

}  // namespace tessera::mpi
