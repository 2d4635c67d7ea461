// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The smallest unit a strategy moves: a piece of a model with parameters and a forward function.
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/model/block_context.h"
#include "tessera/model/placement.h"
#include "tessera/model/update_rule.h"

namespace tessera {

/// A named leaf tensor of a block. Strategies replace its storage (Tensor::set_data) and its
/// gradient, never the handle.
struct Parameter {
  std::string name;          ///< unique inside the block, e.g. "self_attention.dense.weight"
  at::Tensor tensor;         ///< leaf; one that needs no gradient is frozen
  bool weight_decay = true;  ///< false for biases and norm weights
  Placement placement;       ///< made by cut_parameter(); strategies fill in what they add
  /// Whoever adds to .grad() by hand asks take_blank() or settle_blank() first
  /// (tessera/core/blank.h; the operations of tessera/ops do, and autograd need not), so strategies
  /// need not clear it.
  bool blank_gradient = false;
  UpdateRule rule;  ///< how the optimizer treats it
  /// Optimizers that keep less of large parameters (StateRules) keep all of this one, as of small
  /// ones: an embedding or a head.
  bool fp32_state = false;
  /// Backward adds rows of the micro-batch's ids to its gradient, by ops::embedding() with
  /// BlockContext::late_rows, and nothing else.
  bool row_gradient = false;
};

/// A tensor of a block that is no parameter: nothing trains it, but it is part of the model.
struct Buffer {
  std::string name;   ///< unique inside the block, also among its parameters
  at::Tensor tensor;  ///< the value; strategies may replace its storage
  /// Blocks may change it in forward (running statistics) when a data rank is named whose values
  /// are the model's, also in evaluation, but not with BlockContext::runs_again; -1: constant, and
  /// equal on all ranks.
  int data_rank = -1;
};

/// Blocks of a model run in order; each takes the previous one's output. The last block returns a
/// 1-D fp32 tensor whose element 0 is the SUM of the loss over the micro-batch's supervised
/// targets; further elements are counters summed over batches (element 1: correct predictions, when
/// the block knows them) and carry no gradient.
///
/// Contract with strategies [docs/library/own-model.md]: parameters hold their values between
/// before_forward and after_forward and between before_backward and after_backward, and nowhere
/// else. During backward every parameter's .grad() is a defined tensor to be ADDED to: autograd
/// does so by itself; a hand-written block may write there directly and return no gradient to
/// autograd. For the last block that already holds while its forward runs with gradients enabled,
/// and context.loss_gradient is set: backward's incoming gradient of element 0 is that same
/// scalar.
class Block {
 public:
  virtual ~Block() = default;
  /// hidden: the previous block's output; for the first block undefined (it reads
  /// micro_batch.input_ids).
  virtual at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch,
                             const BlockContext& context) = 0;
  /// Whether forward() keeps to the rows of micro_batch.packed: it looks at no other position, or
  /// only at those of the same row. Strategies refuse packed micro-batches for blocks that do not.
  virtual bool takes_packed_rows() const { return false; }
  /// Of a last block: element 1 of what it returns is what its loss is divided by in place of
  /// MicroBatch::target_count, summed over micro-batches and ranks as the loss is; counters follow.
  virtual bool gives_divisor() const { return false; }
  /// Always the same handles in the same order. One whose tensor needs no gradient is frozen.
  virtual std::vector<Parameter> parameters() = 0;
  /// On the rank's device, kept whole on every rank that has the block.
  virtual std::vector<Buffer> buffers() { return {}; }
  /// Whether backward of hidden's dtype and device can leave its weight gradients for later
  /// (BlockContext::deferred_gradients). The answer must be the same for all micro-batches of a
  /// step on all ranks: of the context it may look at fused_layers alone. A single forward() need
  /// not promise it; strategies then keep that backward's gradients until later.
  virtual bool defers_gradients(const at::Tensor& /*hidden*/, const BlockContext&) const {
    return false;
  }
  /// Whether forward() takes rows piece by piece (MicroBatch::so_far). A block that treats every
  /// token alone does without doing anything.
  virtual bool continues_rows() const { return false; }
  /// Whether a GPU may record what forward() and its backward issue, and run it again for other
  /// micro-batches of the same shapes (a CUDA graph): the host reads no values, target_count and
  /// seed among them, and waits for nothing on the device. Outside of training: of forward() and a
  /// Head's logits() of one more token a row.
  virtual bool is_recordable(bool /*training*/) const { return false; }
};

/// A last block that can also give its scores instead of the loss.
class Head : public Block {
 public:
  /// Causal models: [batch, sequence, vocabulary], or [n, vocabulary] where the micro-batch has
  /// head_positions; classifiers: [labels, classes]. The same on every rank of a tensor axis.
  virtual at::Tensor logits(const at::Tensor& hidden, const MicroBatch& micro_batch,
                            const BlockContext& context) = 0;
};

}  // namespace tessera
