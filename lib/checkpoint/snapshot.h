// SPDX-License-Identifier: MIT
#pragma once
// Copies of a state, so that training continues while they are written.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <future>
#include <optional>
#include <vector>

#include "lib/checkpoint/shard_writer.h"

namespace tessera {

// Copies adjacent values together, since a state has thousands of pieces in few blocks. One copy at
// a time.
class Snapshot {
 public:
  // host_ranks: number of ranks that share the host's memory.
  explicit Snapshot(int host_ranks) : host_ranks_(host_ranks) {}
  ~Snapshot();

  // Reserves the memory of these pieces' copies: the device's at once, cached by its allocator; the
  // host's on a thread, which the next call joins.
  void reserve(const std::vector<ShardPiece>& pieces);

  // Copies the values: on their device as far as memory allows, within milliseconds; the rest to
  // host memory (page-locked for a GPU), which is reused. Complete once the device's current stream
  // reaches this point. False, without effect, if memory is short. late: leaves copies to the host
  // that only the optimizer step invalidates to copy_the_rest().
  bool take(const std::vector<ShardPiece>& pieces, bool late);
  bool has_rest() const { return !rest_.empty(); }
  // Call before the next optimizer step, on any thread, on a stream ordered after the last one.
  void copy_the_rest();
  // Replaces the values of take()'s pieces by the copies; once. Any thread.
  void give(std::vector<ShardPiece>& pieces);

 private:
  struct Run {  // adjacent values of one dtype
    at::Tensor values, copy;
    bool forward_may_change = false;
    int64_t bytes() const { return static_cast<int64_t>(values.nbytes()); }
  };
  struct TensorOffset {  // position of a tensor
    size_t run = 0;
    int64_t begin = 0;  // in elements
  };
  void find_runs(const std::vector<ShardPiece>& pieces);
  bool find_memory(std::vector<Run*>& on_device, std::vector<Run*>& on_host);
  int64_t device_budget(at::Device device);

  int host_ranks_;
  std::vector<Run> runs_;
  std::vector<TensorOffset> offsets_;  // of all pieces' tensors in order
  std::vector<size_t> rest_;           // indices of runs
  at::Tensor host_;
  std::future<at::Tensor> reserved_;
  // Device bytes: the peak of steps without a copy, and the last copy, which the allocator caches.
  std::optional<int64_t> peak_of_steps_;
  int64_t device_bytes_ = 0;
};

}  // namespace tessera
