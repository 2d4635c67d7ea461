// SPDX-License-Identifier: MIT
#pragma once
// The process manager of MPICH and Intel MPI (Hydra), spoken to without their library.
#include <string>

namespace tessera {

// Hands rank 0's text to all ranks through the key-value space of PMI version 1, whose socket the
// manager leaves in the variable PMI_FD. Collective over the processes it has started, once a
// process; text has no spaces or line ends and at most 500 characters. Throws Error(kUnavailable)
// when the manager does not answer within the time.
std::string broadcast_over_pmi(int rank, const std::string& text, double timeout_s);

}  // namespace tessera
