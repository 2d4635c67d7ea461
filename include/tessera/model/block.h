// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Block: the smallest unit a strategy moves, with parameters and a forward function.
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/model/block_context.h"
#include "tessera/model/placement.h"
#include "tessera/model/update_rule.h"

namespace tessera {

/// A block's named leaf tensor. Strategies replace its storage (Tensor::set_data) and gradient,
/// never the handle.
struct Parameter {
  std::string name;          ///< unique inside the block, e.g. "self_attention.dense.weight"
  at::Tensor tensor;         ///< leaf; frozen if it needs no gradient
  bool weight_decay = true;  ///< false for biases and norm weights
  Placement placement;       ///< set by cut_parameter(); strategies complete it
  /// The gradient may be lazily zero (tessera/core/lazy_zero.h), so strategies need not clear it.
  /// Code that adds to .grad() by hand calls consume_lazy_zero() or materialize_lazy_zero() first,
  /// as tessera/ops does; autograd need not.
  bool lazy_zero_gradient = false;
  UpdateRule rule;  ///< treatment by the optimizer
  /// Exempts an embedding or a head from reduced optimizer state (StateRules), like small
  /// parameters.
  bool fp32_state = false;
  /// Backward adds rows of the micro-batch's ids to its gradient, by ops::embedding() with
  /// BlockContext::deferred_rows, and nothing else.
  bool row_gradient = false;
};

/// A block's tensor that is not trained but part of the model.
struct Buffer {
  std::string name;   ///< unique in the block, also among its parameters
  at::Tensor tensor;  ///< the value; strategies may replace its storage
  /// Data rank whose values are the model's, for buffers that forward changes (running statistics),
  /// except with BlockContext::will_recompute. -1: constant and equal on all ranks.
  int data_rank = -1;
};

/// A piece of a model. Blocks run in order; each takes the previous one's output. The last block
/// returns a 1-D fp32 tensor: element 0 is the SUM of the loss over the micro-batch's supervised
/// targets. Further elements are counters without gradient, summed over batches (element 1: correct
/// predictions, if known).
///
/// Contract with strategies [docs/library/own-model.md]: parameters hold their values only during
/// the block's forward and backward. In backward every parameter's .grad() is a defined tensor to
/// ADD to. Autograd does so; a hand-written block may write there directly and return no gradient
/// to autograd. In the last block this holds already in forward with gradients, with
/// context.loss_gradient set; backward's incoming gradient of element 0 is that scalar.
class Block {
 public:
  virtual ~Block() = default;
  /// Runs the block. hidden: the previous block's output; undefined for the first block, which
  /// reads micro_batch.input_ids.
  virtual at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch,
                             const BlockContext& context) = 0;
  /// Whether forward() supports micro_batch.packed: positions do not interact across rows.
  /// Otherwise strategies reject packed micro-batches.
  virtual bool supports_packed_rows() const { return false; }
  /// Whether forward() accepts a part of every row (BlockContext::cut_rows): tokens do not interact
  /// except through it. Otherwise strategies reject a context axis.
  virtual bool takes_cut_rows() const { return false; }
  /// Whether forward() heeds BlockContext::fp8, if only by having no product that it asks for in 8
  /// bits. Strategies reject it where no block does.
  virtual bool takes_fp8() const { return false; }
  /// Last block: whether element 1 of its output divides the loss in place of
  /// MicroBatch::target_count. It is summed over micro-batches and ranks; counters follow it.
  virtual bool gives_divisor() const { return false; }
  /// Always the same handles in the same order; frozen ones need no gradient.
  virtual std::vector<Parameter> parameters() = 0;
  /// Buffers on the rank's device, unsharded on every rank that has the block.
  virtual std::vector<Buffer> buffers() { return {}; }
  /// Whether backward, for hidden's dtype and device, can defer its weight gradients
  /// (BlockContext::deferred_gradients). The answer must be equal for all micro-batches of a step
  /// on all ranks, so it may read only fused_layers. A forward() that does not promise it is legal:
  /// strategies then buffer that backward's gradients.
  virtual bool defers_gradients(const at::Tensor& /*hidden*/, const BlockContext&) const {
    return false;
  }
  /// Whether forward() accepts rows piece by piece (MicroBatch::decode_state). Blocks that treat
  /// each token by itself do so anyway.
  virtual bool supports_kv_cache() const { return false; }
  /// Whether forward() and backward can be captured as a CUDA graph for micro-batches of the same
  /// shapes: the host reads no values (target_count and seed included) and never synchronises.
  /// Outside training: forward() and a Head's logits() when decoding one token per row.
  virtual bool is_recordable(bool /*training*/) const { return false; }
};

/// A last block that can also return its scores.
class Head : public Block {
 public:
  /// Scores. Causal models: [batch, sequence, vocabulary], or [n, vocabulary] with head_positions;
  /// classifiers: [labels, classes]. Equal on all tensor ranks.
  virtual at::Tensor logits(const at::Tensor& hidden, const MicroBatch& micro_batch,
                            const BlockContext& context) = 0;
};

}  // namespace tessera
