// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// In-process ranks: each thread is a rank.
#include <functional>
#include <memory>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

/// The communicators of a new in-process world, one for each thread; the device is the CPU.
/// Reductions add in rank order, fp16 and bf16 in fp32 with one rounding, so results do not depend
/// on timing. Operations under way on one communicator have no order among each other. Errors come
/// from wait(): Error(kInvalidArgument) on all ranks when their calls do not match,
/// Error(kUnavailable) when a rank that is needed has destroyed its communicator. abort() reaches
/// every communicator split from it.
std::vector<std::unique_ptr<Communicator>> make_local_world(int size);

/// Runs fn on size threads, each with its own communicator of one world; they share the caller's
/// intra-op threads. An exception aborts the world. When all threads have ended, the first
/// exception that is not the consequence of another is rethrown here.
void run_local_ranks(int size, const std::function<void(Communicator&)>& fn);

}  // namespace tessera
