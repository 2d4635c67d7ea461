// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Local transport: in-process ranks, one thread each.
#include <functional>
#include <memory>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

/// Communicators of a new in-process world, one per thread, on the CPU. Reductions add in rank
/// order, fp16 and bf16 in fp32 with one rounding, so results are deterministic. Pending operations
/// of one communicator run in no fixed order. wait() throws Error(kInvalidArgument) on all ranks
/// when their calls do not match, and Error(kUnavailable) when a needed rank has destroyed its
/// communicator. abort() reaches every communicator split from it.
std::vector<std::unique_ptr<Communicator>> make_local_world(int size);

/// Runs fn on size threads, each a rank of one world; they share the caller's intra-op threads. An
/// exception aborts the world. After all threads have ended, rethrows the first exception that does
/// not follow from another.
void run_local_ranks(int size, const std::function<void(Communicator&)>& fn);

}  // namespace tessera
