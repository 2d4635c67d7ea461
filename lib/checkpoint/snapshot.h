// SPDX-License-Identifier: MIT
#pragma once
// Copies of a state, so that the run goes on while they are written.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <future>
#include <optional>
#include <vector>

#include "lib/checkpoint/shard_writer.h"

namespace tessera {

// Values that lie side by side in memory are copied together: a state has thousands of pieces in a
// few blocks. One copy is in use at a time.
class Snapshot {
 public:
  // host_ranks: that share the host's memory.
  explicit Snapshot(int host_ranks) : host_ranks_(host_ranks) {}
  ~Snapshot();

  // Gets the memory that copies of these pieces need: the device's at once, to be kept by its
  // allocator, the host's on a thread; the next call waits for it.
  void reserve(const std::vector<ShardPiece>& pieces);

  // Copies the values: on their device as far as its memory allows, which takes milliseconds, the
  // others in host memory (page-locked for a GPU), which is kept for the next time. The copies are
  // complete where the device's current stream is now. False, and nothing done, where neither
  // memory has room.
  // late: what has to go to the host, and only the optimizer's step changes, is left to
  // copy_the_rest().
  bool take(const std::vector<ShardPiece>& pieces, bool late);
  bool has_rest() const { return !rest_.empty(); }
  // On any thread, before the next optimizer's step begins, on a stream behind the last one.
  void copy_the_rest();
  // Puts the copies into the pieces that take() got; once. On any thread.
  void give(std::vector<ShardPiece>& pieces);

 private:
  struct Run {  // values side by side, of one dtype
    at::Tensor values, copy;
    bool forward_may_change = false;
    int64_t bytes() const { return static_cast<int64_t>(values.nbytes()); }
  };
  struct Place {  // of a tensor
    size_t run = 0;
    int64_t begin = 0;  // in elements
  };
  void find_runs(const std::vector<ShardPiece>& pieces);
  bool find_memory(std::vector<Run*>& on_device, std::vector<Run*>& on_host);
  int64_t device_budget(at::Device device);

  int host_ranks_;
  std::vector<Run> runs_;
  std::vector<Place> places_;  // of the tensors of all pieces in order
  std::vector<size_t> rest_;   // runs
  at::Tensor host_;
  std::future<at::Tensor> reserved_;
  // Of the device: what steps need at most without a copy, and the last copy, which its allocator
  // keeps.
  std::optional<int64_t> peak_of_steps_;
  int64_t device_bytes_ = 0;
};

}  // namespace tessera
