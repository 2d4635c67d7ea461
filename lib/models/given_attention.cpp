// SPDX-License-Identifier: MIT
#include "lib/models/given_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

namespace tessera::detail {

at::Tensor attend_given(const DecoderAttention& attention, const at::Tensor& qkv,
                        GivenAttention* kept) {
  if (kept == nullptr) return attention(qkv);
  const at::AutoGradMode with_gradients(true);
  kept->qkv = qkv.detach().requires_grad_();
  kept->output = attention(kept->qkv);
  return kept->output.detach();
}

at::Tensor attend_given_backward(GivenAttention kept, const at::Tensor& gradient) {
  const at::AutoGradMode with_gradients(true);
  return torch::autograd::grad({kept.output}, {kept.qkv}, {gradient})[0];
}

}  // namespace tessera::detail
