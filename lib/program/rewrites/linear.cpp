// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lib/program/rewrites/rewrite.h"
#include "tessera/ops/functional.h"
#include "tessera/ops/kernels.h"

namespace tessera::program {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Adds the weight's gradient where it belongs (the Block contract), without a tensor between.
class DirectLinear : public torch::autograd::Function<DirectLinear> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    context->save_for_backward({x});
    context->saved_data["weight"] = weight;
    context->saved_data["x_wanted"] = x.requires_grad();
    context->saved_data["bias_wanted"] = bias && bias->requires_grad();
    return at::linear(x, weight, bias);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0].contiguous();
    const at::Tensor weight = context->saved_data["weight"].toTensor();
    const at::Tensor gradient = gradients[0].contiguous();
    variable_list results(3);
    if (context->saved_data["x_wanted"].toBool())
      results[0] = ops::linear_backward_input(gradient, weight);
    ops::linear_backward_weight(gradient, x, weight.grad());
    if (context->saved_data["bias_wanted"].toBool()) {
      results[2] = gradient.reshape({-1, gradient.size(-1)}).sum(0);
    }
    return results;
  }
};

// x, weight, bias or None.
at::Tensor run_linear(const std::vector<c10::IValue>& arguments, const RunContext&) {
  const at::Tensor& x = arguments[0].toTensor();
  const at::Tensor& weight = arguments[1].toTensor();
  const at::Tensor bias = arguments[2].isNone() ? at::Tensor() : arguments[2].toTensor();
  const bool direct = at::GradMode::is_enabled() && weight.requires_grad() && weight.is_leaf() &&
                      weight.grad().defined() && weight.grad().is_contiguous() &&
                      x.scalar_type() == weight.scalar_type();
  if (!direct) return ops::linear(x, weight, bias);
  return DirectLinear::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

std::optional<Proposal> propose_linear(const ProgramView& view, size_t anchor) {
  const Node& node = view.graph().nodes[anchor];
  if (node.target != "aten.linear.default") return std::nullopt;
  const ValueId x = value_of(node, "input"), weight = value_of(node, "weight"),
                bias = value_of(node, "bias");
  if (!view.is_parameter(weight)) return Proposal{.reason = "its weight is no parameter"};
  return Proposal{
      .candidates = {
          {result_of(node),
           {{"x", reference(x)}, {"weight", reference(weight)}, {"bias", item_or_none(bias)}},
           {.any_extent = true}}}};
}

}  // namespace

Rewrite linear_rewrite() { return {"linear", {"tessera.linear", run_linear}, propose_linear}; }

}  // namespace tessera::program
