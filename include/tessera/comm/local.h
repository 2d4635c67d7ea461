#pragma once
// In-process ranks: each thread is a rank.
#include <functional>
#include <memory>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

// The n communicators of a new in-process world, one for each thread; device is the CPU. Reductions add in rank order, so
// results do not depend on timing.
std::vector<std::unique_ptr<Communicator>> make_local_world(int size);

// Runs fn on n threads, each with its own communicator of one world. The first exception aborts the others' communicators and
// is rethrown here after all threads have ended.
void run_local_ranks(int size, const std::function<void(Communicator&)>& fn);

}  // namespace tessera
