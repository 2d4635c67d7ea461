// SPDX-License-Identifier: MIT
#pragma once
// Entries of the MPI transport in the table of transports.
#include "lib/comm/control/endpoints.h"
#include "lib/comm/transport.h"

namespace tessera::mpi {

// True when this MPI's launcher started the processes.
bool belongs_to(const LaunchInfo& launch);
std::string unusable_because(const LaunchInfo& launch);
std::unique_ptr<Communicator> connect(const TransportContext& context);
std::string library();  // "Open MPI v4.1.4", the version loaded
Rendezvous exchange_rendezvous(const Rendezvous& of_rank_0);
// Finalises MPI if tessera initialised it and no rank has failed: otherwise MPI_Finalize could
// block for ever.
void close(bool clean);

}  // namespace tessera::mpi
