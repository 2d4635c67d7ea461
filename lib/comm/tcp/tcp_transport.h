// SPDX-License-Identifier: MIT
#pragma once
// Entries of the TCP transport in the table of transports: CPU ranks without MPI.
#include "lib/comm/transport.h"

namespace tessera::tcp {

std::string unusable_because(const LaunchInfo& launch);
// Connects every pair of ranks. Throws Error(kUnavailable) with the ranks that cannot be reached.
std::unique_ptr<Communicator> connect(const TransportContext& context);

}  // namespace tessera::tcp
