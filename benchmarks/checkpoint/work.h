// SPDX-License-Identifier: MIT
#pragma once
// States to save and load, and the same bytes written and read plainly.
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "tessera/checkpoint/state.h"
#include "tessera/comm/communicator.h"

namespace tessera::bench {

struct Work {
  std::string directory;             // in which everything is written
  int64_t bytes = int64_t{1} << 30;  // of the state of all ranks
  int ranks = 2;                     // in-process
  at::Device device = at::kCPU;      // that holds the state
};

// Masters and both moments of layers of 16 MiB and 16 KiB, cut into equal parts over the ranks.
std::vector<StateTensor> sharded_state(const Work& work, const Communicator& world);

struct Seconds {
  double whole = 0;  // of the slowest rank
  double stall = 0;  // of it, in which the caller waited
};
// Every rank writes its part of the bytes in pieces of 16 MiB, and fsyncs.
Seconds write_plainly(const Work& work);
// Reads what write_plainly() has left, from the disk and not from the page cache.
Seconds read_plainly(const Work& work);
Seconds save(const Work& work, bool asynchronous);
// Loads what save() has left. cold: from the disk. Other ranks: of which each reads its own part.
Seconds load(const Work& work, bool cold, int ranks);

}  // namespace tessera::bench
