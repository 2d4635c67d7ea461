// SPDX-License-Identifier: MIT
#pragma once
// Which part of its host a rank may use.
#include <cstdint>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/comm/communicator.h"

namespace tessera {

struct HostShare {
  int64_t host = 0;        // the same on all ranks of one host, different between hosts
  std::vector<int> cores;  // this rank's alone where there are enough
  int threads = 1;         // that may run on them at once beside those of other ranks
};

// Collective. Ranks of a host that may run on the same cores near their GPUs divide them.
HostShare find_host_share(Communicator& world);

// Elements a thread updates at a time: LibTorch and the host's AdamW stay on the calling thread.
inline constexpr int64_t kHostChunk = int64_t{1} << 15;
// Threads of the host's step: what the user asks for, or one a core.
int thread_count(const OffloadConfig& config, const HostShare& share);

// Collective: every rank says what it is about to allocate in host memory; throws
// Error(kResourceExhausted) on all of them, naming the host's numbers, unless each host has enough.
void require_host_memory(Communicator& world, int64_t host, int64_t bytes, const char* what);

}  // namespace tessera
