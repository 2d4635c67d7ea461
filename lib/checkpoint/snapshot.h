#pragma once
// Copies of a state, so that the run goes on while they are written.
#include <ATen/core/Tensor.h>

#include <vector>

#include "lib/checkpoint/shard_writer.h"
#include "tessera/core/device.h"
#include "tessera/core/host_threads.h"

namespace tessera {

class Snapshot {
 public:
  // Replaces the values by copies: on their device where its memory allows, which takes
  // milliseconds, else in host memory (page-locked for a GPU), which is kept for the next time. The
  // copies are complete when this returns, or on the device's current stream. False, and nothing
  // changed, where neither memory has room.
  bool take(std::vector<ShardPiece>& pieces);

 private:
  at::Tensor host_;
};

}  // namespace tessera
