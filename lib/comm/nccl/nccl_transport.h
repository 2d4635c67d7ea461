// SPDX-License-Identifier: MIT
#pragma once
// The NCCL transport's entries of the table of transports.
#include "lib/comm/transport.h"

namespace tessera::nccl {

std::string unusable_because(const LaunchInfo& launch);
// Takes GPU local_rank; refuses two ranks on one GPU by name.
std::unique_ptr<Communicator> connect(const TransportContext& context);
std::string library();  // "NCCL 2.28.9", as it is loaded

}  // namespace tessera::nccl
