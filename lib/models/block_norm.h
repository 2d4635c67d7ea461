// SPDX-License-Identifier: MIT
#pragma once
// Norm of a decoder block: layer norm, or RMS norm if the weights have no bias.
#include <ATen/core/Tensor.h>

#include "lib/models/decoder_block.h"
#include "tessera/ops/kernels.h"

namespace tessera::detail {

struct Norm {
  at::Tensor output, mean, rstd;  // as in ops::LayerNormOutput; mean undefined without a bias
  bool needed = true;             // whether backward recomputes the output, unless saved
};

// cleared, largest: see ops::layer_norm_forward.
Norm norm_forward(const at::Tensor& x, const NormWeights& w, double epsilon,
                  const at::Tensor& cleared = {}, at::Tensor* largest = nullptr);

// Memory for an output that backward recomputes, unless it was saved.
inline at::Tensor* unless_kept(at::Tensor& output) { return output.defined() ? nullptr : &output; }

// Returns the gradient of x. Recomputes forward.output if it is needed. Adds weight and bias
// gradients to g; sinks: further results.
at::Tensor norm_backward(const at::Tensor& gradient, const at::Tensor& x, Norm& forward,
                         const NormWeights& w, const NormWeights& g,
                         const at::Tensor& residual_gradient, ops::LayerNormGradients sinks,
                         ops::ColumnSums& sums);

}  // namespace tessera::detail
