// SPDX-License-Identifier: MIT
#pragma once
// What a block's tensors take while it runs: counted on a block without memory.
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "lib/core/meta.h"
#include "lib/plan/activations.h"
#include "lib/plan/silent_communicator.h"

namespace tessera {

// Bytes above what was there before.
struct BlockBytes {
  int64_t output = 0;     // of forward
  int64_t kept = 0;       // from a forward with gradients until its backward, output included
  int64_t forward = 0;    // the most during it
  int64_t plain = 0;      // the most during a forward without gradients
  int64_t cache = 0;      // of keys and values, that it leaves
  int64_t backward = 0;   // the most during backward, given the output's gradient
  int64_t input = 0;      // the gradient of its input, which backward leaves
  int64_t split = 0;      // as backward, where weight gradients are deferred
  int64_t deferred = 0;   // from backward to the weight gradients, where these are deferred
  int64_t weights = 0;    // the most while these are made
  int64_t constants = 0;  // what the block holds besides parameters
};

// Blocks of one plan with micro-batches of one shape. The model's blocks are asked for in order:
// each takes what the one before gives. Equal blocks (by BlockCost) are run once. In steps the loss
// block runs both ways in forward; else no block has a backward. One meter serves plans that differ
// in which blocks run again in backward, where its own names some of them.
class BlockMeter {
 public:
  BlockMeter(const LayoutPlan& plan, const BatchShape& batch, Pass pass);
  ~BlockMeter();
  // again: it runs again in backward, and then keeps what need not be formed anew.
  const BlockBytes& of(size_t block, bool again = false) const {
    return again && !again_.empty() ? again_.at(block) : blocks_.at(block);
  }
  // Of the micro-batch itself.
  int64_t batch_bytes() const { return batch_bytes_; }

 private:
  std::vector<BlockBytes> run_all();
  BlockBytes run(size_t block, bool is_last, std::vector<int64_t>& hidden);
  BlockBytes step(Block& block, bool has_input, bool is_last, std::vector<int64_t>& hidden,
                  MetaMemoryCounter& counter, int64_t parameter_bytes);
  BlockBytes infer(Block& block, bool has_input, bool is_last, std::vector<int64_t>& hidden,
                   MetaMemoryCounter& counter, int64_t parameter_bytes);
  std::unique_ptr<Block> build(size_t block, int64_t& parameter_bytes);

  const LayoutPlan& plan_;
  const Pass pass_;
  const int64_t capacity_;  // of the key/value cache; 0: none
  const bool begun_;
  SilentCommunicator layers_, ends_;
  MicroBatch micro_batch_;
  int64_t batch_bytes_ = 0;
  std::vector<BlockBytes> blocks_, again_;  // again_: empty where both are the same
};

// Bytes to which the device's allocator rounds.
int64_t allocation_unit(const LayoutPlan& plan);

}  // namespace tessera
