// SPDX-License-Identifier: MIT
// Column-parallel and row-parallel linear layers.
#include <ATen/ATen.h>

#include "lib/model/tensor_collectives.h"
#include "tessera/core/error.h"
#include "tessera/ops/functional.h"
#include "tessera/ops/kernels.h"

namespace tessera {
namespace {

using detail::GradientSink;
using detail::Pending;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

at::Tensor restore(const at::Tensor& rows, at::IntArrayRef leading) {
  std::vector<int64_t> shape = leading.vec();
  shape.push_back(rows.size(1));
  return rows.view(shape);
}

at::IntArrayRef leading(const at::Tensor& x) { return x.sizes().slice(0, x.dim() - 1); }

class ColumnLinear : public Function<ColumnLinear> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& given_bias, at::IntArrayRef tokens,
                            const TensorAxis& axis) {
    const at::Tensor bias = given_bias.value_or(at::Tensor()), own = detail::as_rows(x);
    at::Tensor all = own;
    if (axis.sequence_parallel()) {
      all = detail::start_gather_rows(own, c10::multiply_integers(tokens), axis).wait();
    }
    detail::keep_axis(context, axis);
    context->save_for_backward({own});
    context->saved_data["weight"] = weight;
    if (bias.defined()) context->saved_data["bias"] = bias;
    context->saved_data["shape"] = x.sizes().vec();
    const at::Tensor y = ops::linear_forward(all, weight, bias);
    return restore(y, axis.sequence_parallel() ? tokens : leading(x));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const TensorAxis axis = detail::kept_axis(context);
    auto& data = context->saved_data;
    const at::Tensor own = context->get_saved_variables()[0], weight = data["weight"].toTensor();
    const at::Tensor dy = detail::as_rows(gradients[0]);
    // gathered again: keeping it would undo the savings of sequence parallelism
    Pending all{own, {}};
    if (axis.sequence_parallel()) all = detail::start_gather_rows(own, dy.size(0), axis);
    const at::Tensor part = ops::linear_backward_input(dy, weight);
    Pending dx = axis.sequence_parallel() ? detail::start_reduce_scatter_rows(part, axis)
                                          : detail::start_all_reduce(part, axis);
    const GradientSink weight_sink(weight);
    const GradientSink bias_sink(data.count("bias") ? data["bias"].toTensor() : at::Tensor());
    if (weight_sink.target.defined()) {
      ops::linear_backward_weight(dy, all.wait(), weight_sink.target);
    }
    if (bias_sink.target.defined()) {
      ops::ColumnSums sums;
      ops::linear_backward_bias(dy, bias_sink.target, sums);
      ops::add_column_sums(sums);
    }
    all.wait();
    const auto shape = data["shape"].toIntVector();
    return {dx.wait().view(shape), weight_sink.for_autograd, bias_sink.for_autograd, {}, {}};
  }
};

class RowLinear : public Function<RowLinear> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const TensorAxis& axis) {
    const at::Tensor rows = detail::as_rows(x);
    detail::keep_axis(context, axis);
    context->save_for_backward({rows});
    context->saved_data["weight"] = weight;
    context->saved_data["shape"] = x.sizes().vec();
    const at::Tensor part = ops::linear_forward(rows, weight, {});
    if (axis.sequence_parallel()) return detail::start_reduce_scatter_rows(part, axis).wait();
    return restore(detail::start_all_reduce(part, axis).wait(), leading(x));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const TensorAxis axis = detail::kept_axis(context);
    const at::Tensor x = context->get_saved_variables()[0];
    const at::Tensor weight = context->saved_data["weight"].toTensor();
    at::Tensor dy = detail::as_rows(gradients[0]);
    if (axis.sequence_parallel()) dy = detail::start_gather_rows(dy, x.size(0), axis).wait();
    const auto shape = context->saved_data["shape"].toIntVector();
    const at::Tensor dx = ops::linear_backward_input(dy, weight).view(shape);
    const GradientSink sink(weight);
    if (sink.target.defined()) ops::linear_backward_weight(dy, x, sink.target);
    return {dx, sink.for_autograd, {}};
  }
};

}  // namespace

at::Tensor column_parallel_linear(const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& bias, at::IntArrayRef tokens,
                                  const TensorAxis& axis) {
  if (axis.size() == 1) return ops::linear(x, weight, bias);
  return ColumnLinear::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, tokens,
                             axis);
}

at::Tensor row_parallel_linear(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, const TensorAxis& axis) {
  if (axis.size() == 1) return ops::linear(x, weight, bias);
  const at::Tensor sum = RowLinear::apply(x, weight, axis);
  return bias.defined() ? sum + bias : sum;
}

ColumnParallelLinear::ColumnParallelLinear(const BuildContext& context, const std::string& name,
                                           const at::Tensor& weight, const at::Tensor& bias,
                                           int parts)
    : CutLayer(context) {
  const TensorCut cut{.dim = 0, .parts = parts};
  parameters_.push_back(cut_parameter(name + ".weight", weight, true, cut, axis_));
  if (bias.defined()) {
    parameters_.push_back(cut_parameter(name + ".bias", bias, false, cut, axis_));
  }
}

at::Tensor ColumnParallelLinear::forward(const at::Tensor& x, at::IntArrayRef tokens) const {
  check(!axis_.sequence_parallel() || !tokens.empty(), ErrorCode::kInvalidArgument, "layer ",
        parameters_[0].name,
        ": sequence parallelism needs the shape of all tokens; pass micro_batch.input_ids.sizes()");
  const at::Tensor bias = parameters_.size() > 1 ? parameters_[1].tensor : at::Tensor();
  return column_parallel_linear(x, parameters_[0].tensor, bias, tokens, axis_);
}

RowParallelLinear::RowParallelLinear(const BuildContext& context, const std::string& name,
                                     const at::Tensor& weight, const at::Tensor& bias)
    : CutLayer(context) {
  parameters_.push_back(cut_parameter(name + ".weight", weight, true, {.dim = 1}, axis_));
  if (bias.defined()) parameters_.push_back(cut_parameter(name + ".bias", bias, false, {}, axis_));
}

at::Tensor RowParallelLinear::forward(const at::Tensor& x) const {
  const at::Tensor bias = parameters_.size() > 1 ? parameters_[1].tensor : at::Tensor();
  return row_parallel_linear(x, parameters_[0].tensor, bias, axis_);
}

}  // namespace tessera
