// SPDX-License-Identifier: MIT
#pragma once
#include <vector>

#include "lib/plan/operation_sequences.h"

namespace tessera {

// [Note: which semantics are checked]
// As MUST for MPI: operations are matched by communicator and order, then compared by arguments.
// Then a run without any buffering is simulated.
//  - Collectives of a communicator match in the order in which its ranks start them. Messages match
//    in order for each ordered pair of ranks, independent of collectives.
//  - A start returns at once. Waiting blocks until all operations of the start are complete; a
//    barrier blocks at once. A collective is complete when all its ranks have started it, a message
//    when both ends have. A send that a transport would buffer is not.
//  - Operations of one communicator run in order on one GPU stream. Among collectives, and among
//    messages of a pair, matching order implies this. A collective starts when its ranks' earlier
//    messages on the same communicator are complete. That is stricter than this library's
//    transports, where messages have streams of their own.
//  - On a GPU a wait blocks the stream, not the host. Work that the host starts later follows on
//    that stream, so blocking the rank is equivalent.

// Operations in which participating ranks differ.
std::vector<CommunicationProblem> find_mismatches(const OperationSequences& sequences);

// Ranks that wait for each other, given operations that all match.
std::vector<CommunicationProblem> find_deadlock(const OperationSequences& sequences);

}  // namespace tessera
