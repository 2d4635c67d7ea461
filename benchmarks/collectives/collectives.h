// SPDX-License-Identifier: MIT
#pragma once
// Measurement of one collective by all ranks.
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/comm/control_channel.h"

namespace tessera::bench {

enum class Collective { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast, kSendRecv };

const char* collective_name(Collective collective);

// Bytes the busiest link carries for each byte of the tensor, as nccl-tests defines it
// (doc/PERFORMANCE.md there): busbw = factor * algbw.
double bus_factor(Collective collective, int ranks);

// Rank 0's order to the others; count 0 ends the job.
struct Measurement {
  Collective collective = Collective::kAllReduce;
  int64_t bytes = 0;  // full tensor: all_gather's output, reduce_scatter's input
  int repeats = 0;

  std::string pack() const;
  static Measurement unpack(const std::string& text);
};

// Seconds of one operation: the mean over the repeats of the slowest rank, after a warm-up.
double measure(Communicator& comm, ControlChannel& control, const Measurement& what);

}  // namespace tessera::bench
