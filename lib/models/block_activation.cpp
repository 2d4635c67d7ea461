// SPDX-License-Identifier: MIT
#include "lib/models/block_activation.h"

#include <ATen/ATen.h>

#include "lib/models/block_norm.h"
#include "lib/models/block_products.h"

namespace tessera::detail {

at::Tensor activation_forward(const at::Tensor& inner, const DecoderBlockOptions& options,
                              at::Tensor* largest) {
  if (options.gated) return ops::swiglu_forward(inner, largest);
  return options.exact_gelu ? at::gelu(inner) : ops::gelu_tanh_forward(inner, largest);
}

at::Tensor activation_backward(const at::Tensor& dactive, const at::Tensor& inner,
                               at::Tensor* active, const DecoderBlockOptions& options,
                               const ProductWeights& w, const ProductWeights& g,
                               ops::ColumnSums& sums, at::Tensor* largest) {
  at::Tensor* const formed = active ? unless_kept(*active) : nullptr;
  if (!options.gated && options.exact_gelu) {
    if (active && !active->defined()) *active = at::gelu(inner);
    at::Tensor dinner = dactive;
    at::gelu_backward_out(dinner, dactive, inner);
    add_bias(dinner, w, g, sums);
    return dinner;
  }
  if (!options.gated) {
    ops::gelu_tanh_backward_(dactive, inner, only_bias(g), sums, formed, largest);
    return dactive;
  }
  const at::Tensor dinner = ops::swiglu_backward_(dactive, inner, formed, largest);
  add_bias(dinner, w, g, sums);
  return dinner;
}

}  // namespace tessera::detail
