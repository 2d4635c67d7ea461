// SPDX-License-Identifier: MIT
#pragma once
// A decoder block's norm of either kind: layer norm, or root-mean-square norm where the weights
// have no bias.
#include <ATen/core/Tensor.h>

#include "lib/models/decoder_block.h"
#include "tessera/ops/kernels.h"

namespace tessera::detail {

struct Norm {
  at::Tensor output, mean, rstd;  // as in ops::LayerNormOutput; mean undefined without a bias
};

// cleared: see ops::layer_norm_forward.
Norm norm_forward(const at::Tensor& x, const NormWeights& w, double epsilon,
                  const at::Tensor& cleared = {});

// Where backward forms anew what forward may have kept.
inline at::Tensor* unless_kept(at::Tensor& output) { return output.defined() ? nullptr : &output; }

// -> gradient of x. forward.output receives it anew unless kept. sinks: what else is wanted, weight
// and bias out of g.
at::Tensor norm_backward(const at::Tensor& gradient, const at::Tensor& x, Norm& forward,
                         const NormWeights& w, const NormWeights& g,
                         const at::Tensor& residual_gradient, ops::LayerNormGradients sinks,
                         ops::ColumnSums& sums);

}  // namespace tessera::detail
