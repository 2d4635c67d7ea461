// SPDX-License-Identifier: MIT
#include "lib/models/block_norm.h"

namespace tessera::detail {

Norm norm_forward(const at::Tensor& x, const NormWeights& w, double epsilon,
                  const at::Tensor& cleared, at::Tensor* largest) {
  if (!w.bias.defined()) {
    auto [output, rstd] = ops::rms_norm_forward(x, w.weight, epsilon, cleared, largest);
    return {.output = output, .rstd = rstd};
  }
  auto [output, mean, rstd] =
      ops::layer_norm_forward(x, w.weight, w.bias, epsilon, cleared, largest);
  return {.output = output, .mean = mean, .rstd = rstd};
}

at::Tensor norm_backward(const at::Tensor& gradient, const at::Tensor& x, Norm& forward,
                         const NormWeights& w, const NormWeights& g,
                         const at::Tensor& residual_gradient, ops::LayerNormGradients sinks,
                         ops::ColumnSums& sums) {
  sinks.weight = g.weight, sinks.bias = g.bias;
  return ops::norm_backward(gradient, {x, forward.mean, forward.rstd, w.weight, w.bias},
                            residual_gradient, sinks, sums,
                            forward.needed ? unless_kept(forward.output) : nullptr);
}

}  // namespace tessera::detail
