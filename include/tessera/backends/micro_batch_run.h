// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// One micro-batch on its way through contiguous blocks of a rank, forth and back.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/model/block_context.h"

namespace tessera {

/// Made by ShardingStrategy::make_run().
struct MicroBatchRun {
  /// What one block leaves in forward for its backward.
  struct BlockRun {
    at::Tensor input;           ///< leaf that collects the gradient of the block's input
    at::Tensor output;          ///< undefined where backward runs the block again
    bool has_backward = false;  ///< it or something before it is trained
    /// Its weight gradients, for backward_weights(); null: backward() makes them.
    std::shared_ptr<DeferredGradients> deferred;
  };
  MicroBatch micro_batch;  ///< on this rank's device
  BlockContext context;    ///< as its blocks see it, with seed and modes set
  /// Blocks of this rank: [first_block, first_block + block_count).
  size_t first_block = 0, block_count = 0;
  bool with_gradients = true;  ///< false: an evaluation or a prediction
  bool with_scores = false;    ///< of the last block, in place of its loss
  /// Of Strategy::forward(): inputs are leaves that collect gradients; blocks' parameters get none.
  bool input_gradients = false, parameter_gradients = true;
  /// backward_weights() follows backward(), for blocks that can do with it.
  bool splits_backward = false;
  /// backward() makes what each block has deferred behind it, and leaves nothing for later.
  bool weights_at_once = false;
  bool last_micro_batch = false;  ///< of the step: its backward completes the gradients
  /// Before forward(): the output of the block before the first (undefined when there is none).
  /// After it: the output of the last block, or its scores; undefined when that was the loss.
  at::Tensor hidden;
  /// Before backward(): of forward's output; the loss sets it in forward(). After it: of forward's
  /// input.
  at::Tensor gradient;
  std::vector<BlockRun> blocks;  ///< between forward and backward
};

}  // namespace tessera
