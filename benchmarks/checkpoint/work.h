// SPDX-License-Identifier: MIT
#pragma once
// States to save and load, and plain writes and reads of as many bytes.
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "tessera/checkpoint/state.h"
#include "tessera/comm/communicator.h"

namespace tessera::bench {

struct Work {
  std::string directory;             // for all files
  int64_t bytes = int64_t{1} << 30;  // state of all ranks
  int ranks = 2;                     // in-process
  at::Device device = at::kCPU;      // device of the state
};

// Masters and both moments of layers of 16 MiB and 16 KiB, divided equally over the ranks.
std::vector<StateTensor> sharded_state(const Work& work, const Communicator& world);

struct Seconds {
  double whole = 0;  // on the slowest rank
  double stall = 0;  // part of it in which the caller waited
};
// Writes each rank's part of the bytes in pieces of 16 MiB, with fsync.
Seconds write_plainly(const Work& work);
// Reads write_plainly()'s files, from the disk and not from the page cache.
Seconds read_plainly(const Work& work);
Seconds save(const Work& work, bool asynchronous);
// Loads save()'s checkpoint. cold: from the disk. ranks: number of ranks, each of which reads its
// own part.
Seconds load(const Work& work, bool cold, int ranks);

}  // namespace tessera::bench
