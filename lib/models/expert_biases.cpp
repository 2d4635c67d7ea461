// SPDX-License-Identifier: MIT
#include "lib/models/expert_biases.h"

#include <ATen/ATen.h>

#include "tessera/core/lazy_zero.h"
#include "tessera/ops/kernels.h"

namespace tessera::detail {
namespace {

// 1 where a row is the expert's: [rows, experts].
at::Tensor owners(const ExpertsSaved& saved, int64_t experts, at::ScalarType dtype) {
  const at::Tensor expert_of =
      saved.routing.experts.reshape({-1}).index_select(0, saved.order.slots);
  return expert_of.unsqueeze(1).eq(at::arange(experts, expert_of.options())).to(dtype);
}

// Every expert's weight in every token, 0 for others: [tokens, experts].
at::Tensor all_weights(const ExpertsSaved& saved, int64_t experts, at::ScalarType dtype) {
  const ops::Routing& routing = saved.routing;
  return at::zeros({routing.weights.size(0), experts}, routing.weights.options())
      .scatter_(1, routing.experts, routing.weights)
      .to(dtype);
}

}  // namespace

void add_up_biases(const ExpertWeights& w, const ExpertsSaved& saved) {
  saved.inner.addmm_(owners(saved, w.up_bias.size(0), saved.inner.scalar_type()), w.up_bias);
}

void add_down_biases(const at::Tensor& sum, const ExpertWeights& w, const ExpertsSaved& saved) {
  sum.addmm_(all_weights(saved, w.down_bias.size(0), sum.scalar_type()), w.down_bias);
}

at::Tensor down_biases_backward(const at::Tensor& gradient, const ExpertWeights& w,
                                const ExpertWeights& g, const ExpertsSaved& saved) {
  if (g.down_bias.defined()) {
    ops::linear_backward_weight(all_weights(saved, w.down_bias.size(0), gradient.scalar_type()),
                                gradient, g.down_bias);
  }
  return ops::router_logits(gradient, w.down_bias).gather(1, saved.routing.experts);
}

void add_bias_gradients(const ExpertsBackward& backward, const ExpertsSaved& saved,
                        const ExpertWeights& g) {
  if (g.router_bias.defined()) {
    materialize_lazy_zero(g.router_bias);
    g.router_bias.add_(
        backward.dlogits.sum(0, /*keepdim=*/false, saved.routing.weights.scalar_type()));
  }
  if (g.up_bias.defined()) {
    ops::linear_backward_weight(owners(saved, g.up_bias.size(0), backward.dinner.scalar_type()),
                                backward.dinner, g.up_bias);
  }
}

}  // namespace tessera::detail
