#pragma once
// Copies of a state, so that the run goes on while they are written.
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "lib/checkpoint/shard_writer.h"

namespace tessera {

class Snapshot {
 public:
  // Replaces the values by copies: on their device where its memory allows, which takes
  // milliseconds, else in host memory (page-locked for a GPU), which is kept for the next time.
  // They are complete where the device's current stream is now. False, and nothing changed, where
  // neither memory has room.
  // late: copies in host memory of what only the optimizer's step changes are left to
  // copy_the_rest().
  bool take(std::vector<ShardPiece>& pieces, bool late);
  // On any thread, before the next optimizer's step begins, on a stream behind the last one.
  void copy_the_rest();

 private:
  at::Tensor host_;
  std::vector<std::pair<at::Tensor, at::Tensor>> rest_;  // copy, value
};

}  // namespace tessera
