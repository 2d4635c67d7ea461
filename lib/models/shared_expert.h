// SPDX-License-Identifier: MIT
#pragma once
// The shared expert of a layer with experts: a gated feed-forward layer of every token, of the
// block's products up and down. With a gate its output is multiplied by sigmoid(x G^T), one number
// a token. That multiplies the input of down, which is the same product, so backward needs no
// output of down. On a tensor axis up and down are cut as in a dense layer, the gate is whole, and
// the sum over ranks is that of the experts.
#include <ATen/core/Tensor.h>

#include "lib/models/block_weight_gradients.h"
#include "lib/models/fused_block.h"

namespace tessera::detail {

// x [..., h], of all tokens -> the rank's part of the output, plus residual unless undefined.
// Leaves what backward needs in kept; while recomputing only that is formed, and the result is
// undefined.
at::Tensor shared_expert_forward(const at::Tensor& x, const at::Tensor& residual,
                                 const DecoderBlockWeights& w, const DecoderBlockOptions& options,
                                 FusedSaved& kept);

// Gradients of the products that read x.
struct SharedExpertBackward {
  ProductWork up, gate;  // without x; gate.dy undefined: no gate
};
// gradient [..., h], of all tokens. Adds x's gradient to dx, and down's weight gradients.
SharedExpertBackward shared_expert_backward(const at::Tensor& gradient,
                                            const DecoderBlockWeights& w,
                                            const DecoderBlockWeights& g,
                                            const DecoderBlockOptions& options,
                                            const FusedSaved& saved, const at::Tensor& dx,
                                            BlockWeightGradients& weights, ops::ColumnSums& sums);
// Adds the weight gradients of up and gate.
void add_shared_expert_gradients(const at::Tensor& x, SharedExpertBackward backward,
                                 BlockWeightGradients& weights);

}  // namespace tessera::detail
