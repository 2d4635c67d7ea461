// SPDX-License-Identifier: MIT
#include "lib/models/given_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/core/lazy_zero.h"

namespace tessera::detail {

at::Tensor attend_given(const DecoderAttention& attention, const at::Tensor& qkv,
                        const at::Tensor& sinks, GivenAttention* kept) {
  if (kept == nullptr) return attention(qkv, sinks);
  const at::AutoGradMode with_gradients(true);
  kept->qkv = qkv.detach().requires_grad_();
  // A copy: a strategy may use the weights' storage for others until backward.
  if (sinks.defined()) kept->sinks = sinks.detach().clone().requires_grad_();
  kept->output = attention(kept->qkv, kept->sinks);
  return kept->output.detach();
}

at::Tensor attend_given_backward(GivenAttention kept, const at::Tensor& gradient,
                                 const at::Tensor& sinks_gradient) {
  const at::AutoGradMode with_gradients(true);
  if (!kept.sinks.defined()) {
    return torch::autograd::grad({kept.output}, {kept.qkv}, {gradient})[0];
  }
  const auto made = torch::autograd::grad({kept.output}, {kept.qkv, kept.sinks}, {gradient});
  if (sinks_gradient.defined()) {
    materialize_lazy_zero(sinks_gradient);
    const at::NoGradGuard no_grad;
    sinks_gradient.add_(made[1]);
  }
  return made[0];
}

}  // namespace tessera::detail
