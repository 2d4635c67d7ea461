// SPDX-License-Identifier: MIT
#pragma once
// Feed-forward of long rows in pieces of rows, so that the inner activations of all tokens are
// never in memory at once.
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lib/models/block_weight_gradients.h"
#include "lib/models/decoder_block.h"
#include "tessera/ops/kernels.h"

namespace tessera::detail {

// Rows of a piece, for x [..., h]; 0: all rows at once. By itself it cuts where up's result takes
// more than 1 GiB. Whole: on a tensor axis, with 8-bit products, with dropout of the branch or of
// adapters' inputs, and where weight gradients are deferred.
int64_t piece_rows(const at::Tensor& x, const ProductWeights& up,
                   const DecoderBlockOptions& options);

// up's result with its bias and adapters, and the activation function of it. inner undefined where
// only `active` is wanted and one kernel computes both. largest: of active, see
// activation_forward().
struct InnerActivations {
  at::Tensor inner, active, lowered;  // lowered: see ProductAdapters::lower()
};
InnerActivations inner_activations(const at::Tensor& x, const ProductWeights& up,
                                   const DecoderBlockOptions& options, bool keep_inner,
                                   at::Tensor* largest = nullptr);

// down(activation(up(x))) + residual. x, residual [..., h] -> like residual.
at::Tensor feed_forward_in_pieces(const at::Tensor& x, const at::Tensor& residual,
                                  const DecoderBlockWeights& w, const DecoderBlockOptions& options,
                                  int64_t rows_of_piece);
// Gradient of x = norm(attended), [..., h], with x and the inner activations formed anew. Adds
// weight gradients of both products and the bias gradient of up to g, or to `weights`.
at::Tensor feed_forward_in_pieces_backward(const at::Tensor& gradient, const at::Tensor& attended,
                                           const DecoderBlockWeights& w,
                                           const DecoderBlockWeights& g,
                                           const DecoderBlockOptions& options,
                                           int64_t rows_of_piece, BlockWeightGradients& weights);

}  // namespace tessera::detail
