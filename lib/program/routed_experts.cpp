// SPDX-License-Identifier: MIT
#include "lib/program/routed_experts.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lib/ops/expert_rows.h"
#include "lib/ops/grouped_product.h"

namespace tessera::program {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class RoutedExperts : public torch::autograd::Function<RoutedExperts> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& experts, const at::Tensor& weights,
                            const at::Tensor& gate_up, const at::Tensor& down) {
    const at::Tensor tokens = x.contiguous();
    const at::Tensor shares = weights.to(at::toOpMathType(x.scalar_type())).contiguous();
    const ops::ExpertOrder order = ops::expert_order(experts, gate_up.size(0));
    const at::Tensor inner = ops::grouped_product(ops::dispatch_rows(tokens, order),
                                                  gate_up.transpose(1, 2), order.ends);
    const at::Tensor rows = ops::grouped_product(ops::weighted_swiglu(inner, shares, order),
                                                 down.transpose(1, 2), order.ends);
    context->save_for_backward(
        {tokens, shares, gate_up, down, inner, order.tokens, order.slots, order.rows, order.ends});
    context->saved_data["weights"] = static_cast<int64_t>(weights.scalar_type());
    return ops::combine_rows(rows, order, {});
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &tokens = saved[0], &shares = saved[1], &gate_up = saved[2], &down = saved[3];
    const ops::ExpertOrder order{
        .tokens = saved[5], .slots = saved[6], .rows = saved[7], .ends = saved[8]};
    at::Tensor to_gate_up, to_down;  // undefined: added to a leaf's gradient
    const at::Tensor drows = ops::dispatch_rows(gradients[0].contiguous(), order);
    const ops::WeightedSwigluBackward inner = ops::weighted_swiglu_backward_(
        ops::grouped_product(drows, down, order.ends), saved[4], shares, order, {});
    if (down.requires_grad()) {
      ops::grouped_weight_gradient(drows, inner.output, order.ends, sink(down, to_down));
    }
    if (gate_up.requires_grad()) {
      ops::grouped_weight_gradient(inner.gate_up, ops::dispatch_rows(tokens, order), order.ends,
                                   sink(gate_up, to_gate_up));
    }
    const at::Tensor dx =
        ops::combine_rows(ops::grouped_product(inner.gate_up, gate_up, order.ends), order, {});
    const auto type = static_cast<at::ScalarType>(context->saved_data["weights"].toInt());
    return {dx, {}, inner.weights.to(type), to_gate_up, to_down};
  }

 private:
  // Where the gradient is added: the leaf's own, or a new one that is returned.
  static at::Tensor sink(const at::Tensor& weight, at::Tensor& result) {
    if (weight.is_leaf() && weight.grad().defined()) return weight.grad();
    return result = at::zeros_like(weight);
  }
};

}  // namespace

at::Tensor routed_experts(const at::Tensor& x, const at::Tensor& experts, const at::Tensor& weights,
                          const at::Tensor& gate_up, const at::Tensor& down) {
  return RoutedExperts::apply(x, experts, weights, gate_up, down);
}

}  // namespace tessera::program
