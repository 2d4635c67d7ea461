// SPDX-License-Identifier: MIT
#include "lib/ops/expert_rows.h"

#include <ATen/ATen.h>

#include "lib/ops/reference.h"

namespace tessera::ops::reference {
namespace {

// Each row's weight, [rows, 1].
at::Tensor row_weights(const at::Tensor& weights, const ExpertOrder& order) {
  return weights.reshape({-1}).index_select(0, order.slots).unsqueeze(1);
}

}  // namespace

at::Tensor dispatch_rows(const at::Tensor& x, const ExpertOrder& order) {
  return x.index_select(0, order.tokens);
}

at::Tensor combine_rows(const at::Tensor& rows, const ExpertOrder& order,
                        const at::Tensor& foreign) {
  const at::Tensor by_slot = rows.index_select(0, order.rows.view(-1))
                                 .view({order.rows.size(0), order.rows.size(1), rows.size(1)});
  if (foreign.defined()) by_slot.masked_fill_(foreign.unsqueeze(2), 0);
  return by_slot.sum(1);
}

at::Tensor weighted_swiglu(const at::Tensor& gate_up, const at::Tensor& weights,
                           const ExpertOrder& order) {
  return ops::swiglu_forward(gate_up).mul_(row_weights(weights, order));
}

WeightedSwigluBackward weighted_swiglu_backward_(const at::Tensor& gradient,
                                                 const at::Tensor& gate_up,
                                                 const at::Tensor& weights,
                                                 const ExpertOrder& order,
                                                 const at::Tensor& foreign) {
  const at::Tensor of_rows = row_weights(weights, order);
  WeightedSwigluBackward result{.output = ops::swiglu_forward(gate_up)};
  const at::Tensor dots =
      (gradient * result.output).sum(-1, /*keepdim=*/false, of_rows.scalar_type());
  result.weights = dots.index_select(0, order.rows.view(-1)).view_as(order.rows);
  if (foreign.defined()) result.weights.masked_fill_(foreign, 0);
  result.output.mul_(of_rows);
  gradient.mul_(of_rows);
  result.gate_up = ops::swiglu_backward_(gradient, gate_up, nullptr);
  return result;
}

}  // namespace tessera::ops::reference
