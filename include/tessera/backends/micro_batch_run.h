// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// One micro-batch in forward and backward through contiguous blocks of a rank.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/model/block_context.h"

namespace tessera {

class KeptTensors;
class OffloadedTensors;

/// State of one micro-batch between its passes. Made by ShardingStrategy::make_run().
struct MicroBatchRun {
  /// Tensors that one block's forward keeps for its backward.
  struct BlockRun {
    at::Tensor input;   ///< leaf that collects the gradient of the block's input
    at::Tensor output;  ///< undefined where backward recomputes the block
    /// What a recomputed block's forward hands to its recomputation; null: nothing.
    std::shared_ptr<KeptTensors> kept;
    /// Input and kept tensors in host memory; null: on the device. Input is undefined meanwhile.
    std::shared_ptr<OffloadedTensors> offloaded;
    bool has_backward = false;  ///< a parameter of this block or an earlier one is trained
    /// The block's weight gradients for backward_weights(); null: backward() computes them.
    std::shared_ptr<DeferredGradients> deferred;
  };
  MicroBatch micro_batch;  ///< on this rank's device
  BlockContext context;    ///< as its blocks see it, with seed and modes set
  /// Blocks of this rank: [first_block, first_block + block_count).
  size_t first_block = 0, block_count = 0;
  bool with_gradients = true;  ///< false: an evaluation or a prediction
  bool with_scores = false;    ///< ends with the last block's scores in place of its loss
  /// Modes of Strategy::forward(): inputs are leaves that collect gradients; parameters get none.
  bool input_gradients = false, parameter_gradients = true;
  /// backward_weights() follows backward(), for blocks that can defer weight gradients.
  bool splits_backward = false;
  /// backward() runs each block's deferred weight gradients right after the block.
  bool weights_at_once = false;
  /// backward() comes right after forward(): what it reads first stays on the device.
  bool backward_follows = false;
  bool last_micro_batch = false;  ///< last of the step: its backward completes the gradients
  /// Before forward(): the output of the previous block (undefined when there is none). After it:
  /// the output of the last block, or its scores; undefined after the loss.
  at::Tensor hidden;
  /// Before backward(): gradient of forward()'s output; the loss sets it in forward(). After it:
  /// gradient of forward()'s input.
  at::Tensor gradient;
  std::vector<BlockRun> blocks;  ///< kept from forward to backward
};

}  // namespace tessera
