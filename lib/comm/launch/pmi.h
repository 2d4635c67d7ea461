// SPDX-License-Identifier: MIT
#pragma once
// Client of Hydra, the process manager of MPICH and Intel MPI, without their libraries.
#include <string>

namespace tessera {

// Broadcasts rank 0's text through the key-value space of PMI version 1; PMI_FD names the manager's
// socket. Collective over the launched processes, once per process. text: at most 500 characters
// without spaces and line ends. Throws Error(kUnavailable) when the manager does not answer within
// timeout_s.
std::string broadcast_over_pmi(int rank, const std::string& text, double timeout_s);

}  // namespace tessera
