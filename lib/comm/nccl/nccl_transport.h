// SPDX-License-Identifier: MIT
#pragma once
// Entries of the NCCL transport in the table of transports.
#include "lib/comm/transport.h"

namespace tessera::nccl {

std::string unusable_because(const LaunchInfo& launch);
// Uses GPU local_rank. Throws with their names when two ranks share a GPU.
std::unique_ptr<Communicator> connect(const TransportContext& context);
std::string library();  // "NCCL 2.28.9", the version loaded

}  // namespace tessera::nccl
