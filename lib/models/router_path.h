// SPDX-License-Identifier: MIT
#pragma once
// How sums of routers reach the head, and their gradients the routers: blocks pass them on behind
// the hidden state. So they cross stages of a pipeline like it, and a recomputed layer's second
// sums are read by nobody.
#include <ATen/core/Tensor.h>

#include "tessera/core/micro_batch.h"
#include "tessera/model/block_context.h"
#include "tessera/model/tensor_parallel.h"
#include "tessera/models/decoder_config.h"

namespace tessera {

// A block's input or output. sums: ops::router_sums() of every layer with experts, [layers, sums],
// zeros for those to come; undefined: the model passes on none.
struct RoutedState {
  at::Tensor hidden, sums;
};

// [Note: balance loss]
// The balance loss multiplies two means over all layers, so no layer can add its part alone, and
// backward of any layer needs the counts of all. The head has them all: it forms the loss by
// autograd, and the gradient of a layer's sums comes back through the layers behind it, unchanged.
//
// On a tensor axis every rank has the same sums of all tokens, so these and their gradient are
// whole on each, as losses are. A rank's gradient of a router's logits is a part of a sum over
// ranks, to which one rank adds that of the sums (experts_backward()).
class RouterPath {
 public:
  // axis: of the block.
  explicit RouterPath(const DecoderConfig& config, const TensorAxis& axis = {});

  // Whether blocks pass on sums: not while decoding.
  bool on(const MicroBatch& micro_batch) const {
    return layers_ > 0 && !micro_batch.decode_state.defined();
  }
  // The first block's output, before all layers; hidden itself when off.
  at::Tensor begin(const at::Tensor& hidden, const MicroBatch& micro_batch) const;
  // Parts of a block's input.
  RoutedState open(const at::Tensor& input, const MicroBatch& micro_batch) const;
  // The output of layer number `layer` (from 0), whose router left `own`; undefined: it has none.
  at::Tensor close(const at::Tensor& hidden, const at::Tensor& sums, const at::Tensor& own,
                   size_t layer) const;
  // A causal head's output, from its loss [1]: in training with the losses of routers, each times
  // the micro-batch's targets. Behind it the counters: balance loss and z-loss times targets, and
  // the counts [layers * experts].
  at::Tensor with_losses(const at::Tensor& loss, const at::Tensor& sums,
                         const MicroBatch& micro_batch, const BlockContext& context) const;

 private:
  int64_t layers_ = 0;  // with experts; 0: off
  int64_t experts_, hidden_;
  TensorAxis axis_;
  double balance_, z_;
  std::vector<int64_t> places_;  // of layers among those with experts
};

// The tokens that count, 1 or 0 by token [tokens]; undefined: all do.
at::Tensor counted_tokens(const MicroBatch& micro_batch, const BlockContext& context);

}  // namespace tessera
