// SPDX-License-Identifier: MIT
#pragma once
// A rank's share of its host.
#include <cstdint>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/comm/communicator.h"

namespace tessera {

struct HostShare {
  int64_t host = 0;        // equal on all ranks of one host, different between hosts
  std::vector<int> cores;  // exclusive to this rank if there are enough
  int threads = 1;         // threads that may run on them beside those of other ranks
};

// Divides cores near the GPUs between ranks of a host that may run on the same ones. Collective.
HostShare find_host_share(Communicator& world);

// Elements per update of a thread: so few that LibTorch and the host's AdamW stay single-threaded.
inline constexpr int64_t kHostChunk = int64_t{1} << 15;
// Threads of the host's step: the user's choice, or one per core.
int thread_count(const OffloadConfig& config, const HostShare& share);

// Checks that each host has memory for its ranks' allocations of `bytes`. Collective; otherwise
// throws Error(kResourceExhausted) on all ranks, with the host's numbers.
void require_host_memory(Communicator& world, int64_t host, int64_t bytes, const char* what);

}  // namespace tessera
