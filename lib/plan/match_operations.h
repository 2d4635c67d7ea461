// SPDX-License-Identifier: MIT
#pragma once
#include <vector>

#include "lib/plan/operation_sequences.h"

namespace tessera {

// [Note: which semantics are checked]
// As MUST does for MPI: operations are matched by communicator and order first, then by their
// arguments, and then a run is simulated in which nothing is buffered.
//  - Collectives of a communicator match in the order in which its ranks start them; messages
//    match in order for each ordered pair of ranks, independent of collectives.
//  - A start returns at once. Waiting blocks until all operations of the start are complete; a
//    barrier blocks at once. A collective is complete when all its ranks have started it, a
//    message when both ends have. A send that a transport would buffer is not.
//  - Operations of one communicator run in order on one stream of a GPU. Among collectives, and
//    among messages of a pair, the order of matching has that already. A collective starts when
//    the messages that its rank began before on the same communicator are complete: stricter than
//    this library's transports, where messages have streams of their own.
//  - On a GPU a wait blocks the stream, not the host. What the host starts later begins after
//    what that stream waits for, so blocking the rank comes to the same.

// Different calls of ranks that take part together.
std::vector<CommunicationProblem> find_mismatches(const OperationSequences& sequences);

// Ranks that wait for each other; of operations that all match.
std::vector<CommunicationProblem> find_deadlock(const OperationSequences& sequences);

}  // namespace tessera
