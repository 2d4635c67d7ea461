#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <utility>
#include <vector>

#include "lib/model/tensor_collectives.h"
#include "lib/ops/saved_value.h"
#include "tessera/models/bloom_block.h"
#include "tessera/ops/kernels.h"

namespace tessera {
namespace {

using detail::Pending;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int kWeights = 12;
using WeightList = std::array<at::Tensor, kWeights>;

WeightList to_list(const BloomBlockWeights& w) {
  return {w.input_norm_weight,
          w.input_norm_bias,
          w.qkv_weight,
          w.qkv_bias,
          w.dense_weight,
          w.dense_bias,
          w.attention_norm_weight,
          w.attention_norm_bias,
          w.up_weight,
          w.up_bias,
          w.down_weight,
          w.down_bias};
}

BloomBlockWeights from_list(const WeightList& w) {
  return {w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11]};
}

struct Settings {
  at::Tensor slopes, attention_mask;
  double epsilon;
  bool post;  // the residual starts at the norm's output
  TensorAxis axis;
  PackedRows packed;
};

// What forward leaves for backward. The norms' outputs and the GELU's are formed anew there.
struct Saved {
  at::Tensor hidden, mean1, rstd1, qkv, context, log_sum_exp, attended, mean2, rstd2, inner;
};

// All tokens of what lies between the layers, for a layer cut by columns.
Pending start_enter(const at::Tensor& x, int64_t rows, const TensorAxis& axis) {
  if (!axis.sequence_parallel()) return {x, {}};
  return detail::start_gather_rows(x, rows, axis);
}

// The sum over ranks of their parts of a product, back between the layers.
Pending start_leave(const at::Tensor& part, const TensorAxis& axis) {
  if (axis.size() == 1) return {part, {}};
  if (!axis.sequence_parallel()) return detail::start_all_reduce(part, axis);
  return detail::start_reduce_scatter_rows(detail::as_rows(part), axis);
}

at::Tensor row_parallel(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        const at::Tensor& residual, const TensorAxis& axis) {
  if (axis.size() == 1) return ops::linear_forward(x, weight, bias, residual);
  // One rank's part carries the bias, for all.
  const at::Tensor part =
      ops::linear_forward(x, weight, axis.rank() == 0 ? bias : at::Tensor(), {});
  at::Tensor sum = start_leave(part, axis).wait();
  return sum.add_(residual);
}

// attention: qkv [batch, sequence, ...] -> ops::AttentionOutput.
template <typename Attention>
at::Tensor run_forward(const at::Tensor& hidden, at::IntArrayRef tokens, const BloomBlockWeights& w,
                       const Settings& settings, const Attention& attend, Saved* saved) {
  const TensorAxis& axis = settings.axis;
  const int64_t rows = c10::multiply_integers(tokens);
  const auto norm1 =
      ops::layer_norm_forward(hidden, w.input_norm_weight, w.input_norm_bias, settings.epsilon);
  const at::Tensor qkv =
      ops::linear_forward(start_enter(norm1.output, rows, axis).wait(), w.qkv_weight, w.qkv_bias)
          .view({tokens[0], tokens[1], -1});
  const ops::AttentionOutput attention = attend(qkv);
  const at::Tensor attended = row_parallel(attention.output, w.dense_weight, w.dense_bias,
                                           settings.post ? norm1.output : hidden, axis);
  const auto norm2 = ops::layer_norm_forward(attended, w.attention_norm_weight,
                                             w.attention_norm_bias, settings.epsilon);
  at::Tensor inner;
  const at::Tensor active =
      ops::linear_gelu_forward(start_enter(norm2.output, rows, axis).wait(), w.up_weight, w.up_bias,
                               saved ? &inner : nullptr);
  if (saved) {
    *saved = {hidden,   norm1.mean, norm1.rstd, qkv,  attention.output, attention.log_sum_exp,
              attended, norm2.mean, norm2.rstd, inner};
  }
  return row_parallel(active, w.down_weight, w.down_bias, settings.post ? norm2.output : attended,
                      axis);
}

at::Tensor run_forward(const at::Tensor& hidden, at::IntArrayRef tokens, const BloomBlockWeights& w,
                       const Settings& settings, Saved* saved) {
  const auto attend = [&](const at::Tensor& qkv) {
    return ops::alibi_attention_forward(qkv, settings.slopes, settings.attention_mask,
                                        settings.packed);
  };
  return run_forward(hidden, tokens, w, settings, attend, saved);
}

// Adds all weight gradients to the tensors in g, whose undefined members are not wanted. On a
// tensor axis every sum over ranks runs beside the product for a weight gradient.
at::Tensor run_backward(const at::Tensor& gradient, const BloomBlockWeights& w,
                        const BloomBlockWeights& g, const Settings& settings, const Saved& s) {
  const TensorAxis& axis = settings.axis;
  const int64_t rows = s.qkv.size(0) * s.qkv.size(1);
  ops::ColumnSums sums;
  const auto add_weight = [](const at::Tensor& dy, const at::Tensor& x, const at::Tensor& to) {
    if (to.defined()) ops::linear_backward_weight(dy, x, to);
  };
  const auto add_bias = [&](const at::Tensor& dy, const at::Tensor& to) {
    if (to.defined()) ops::linear_backward_bias(dy, to, sums);
  };
  const at::Tensor no_residual;
  at::Tensor dattended, dcontext;
  Pending all_dattended;
  {
    Pending all_gradient = start_enter(gradient, rows, axis);
    const at::Tensor dinner = ops::linear_backward_input(all_gradient.wait(), w.down_weight);
    at::Tensor active = ops::gelu_tanh_backward_(dinner, s.inner, g.up_bias, sums), norm;
    Pending sum = start_leave(ops::linear_backward_input(dinner, w.up_weight), axis);
    add_weight(all_gradient.tensor, active, g.down_weight);
    add_bias(gradient, g.down_bias);
    active.reset();
    at::Tensor dnorm = sum.wait();
    if (settings.post) dnorm.add_(gradient);
    dattended = ops::layer_norm_backward(
        dnorm, s.attended, s.mean2, s.rstd2, w.attention_norm_weight, w.attention_norm_bias,
        settings.post ? no_residual : gradient,
        {g.attention_norm_weight, g.attention_norm_bias, g.dense_bias}, sums, &norm);
    all_dattended = start_enter(dattended, rows, axis);
    Pending all_norm = start_enter(norm, rows, axis);
    dcontext = ops::linear_backward_input(all_dattended.wait(), w.dense_weight);
    add_weight(dinner, all_norm.wait(), g.up_weight);
  }
  const at::Tensor dqkv = ops::alibi_attention_backward(
      dcontext.view(s.context.sizes()), s.qkv, settings.slopes, settings.attention_mask,
      {s.context, s.log_sum_exp}, settings.packed);
  Pending sum = start_leave(ops::linear_backward_input(dqkv, w.qkv_weight), axis);
  add_weight(all_dattended.tensor, s.context, g.dense_weight);
  add_bias(dqkv, g.qkv_bias);
  at::Tensor dnorm = sum.wait(), norm;
  if (settings.post) dnorm.add_(dattended);
  const at::Tensor dhidden =
      ops::layer_norm_backward(dnorm, s.hidden, s.mean1, s.rstd1, w.input_norm_weight,
                               w.input_norm_bias, settings.post ? no_residual : dattended,
                               {g.input_norm_weight, g.input_norm_bias, {}}, sums, &norm);
  Pending all_norm = start_enter(norm, rows, axis);
  ops::add_column_sums(sums);
  add_weight(dqkv, all_norm.wait(), g.qkv_weight);
  return dhidden;
}

class FusedBlock : public torch::autograd::Function<FusedBlock> {
 public:
  // The weights are arguments of their own so that autograd sees them; backward reads them through
  // their handles, whose storage a strategy may have replaced in between.
  template <typename... Weights>
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            at::IntArrayRef tokens, const Settings& settings,
                            const Weights&... weights) {
    const WeightList list{weights...};
    Saved s;
    const at::Tensor output = run_forward(hidden, tokens, from_list(list), settings, &s);
    context->save_for_backward({s.hidden, s.mean1, s.rstd1, s.qkv, s.context, s.log_sum_exp,
                                s.attended, s.mean2, s.rstd2, s.inner});
    context->saved_data["weights"] = std::vector<at::Tensor>(list.begin(), list.end());
    save_value(context, "settings", settings);
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const std::vector<at::Tensor> weights = context->saved_data["weights"].toTensorVector();
    const auto& settings = saved_value<Settings>(context, "settings");
    const variable_list v = context->get_saved_variables();
    const Saved saved{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9]};
    variable_list result(3 + kWeights);  // hidden, tokens, settings, weights
    WeightList list, sinks;
    for (int i = 0; i < kWeights; ++i) {
      list[i] = weights[i];
      if (!weights[i].requires_grad()) continue;
      sinks[i] = weights[i].grad();
      if (!sinks[i].defined()) sinks[i] = result[3 + i] = at::zeros_like(weights[i]);
    }
    result[0] =
        run_backward(gradients[0].contiguous(), from_list(list), from_list(sinks), settings, saved);
    return result;
  }
};

}  // namespace

at::Tensor bloom_block_fused(const at::Tensor& hidden, const BloomBlockWeights& weights,
                             const at::Tensor& slopes, const at::Tensor& attention_mask,
                             double epsilon, bool residual_post_layernorm, at::IntArrayRef tokens,
                             const TensorAxis& axis, const PackedRows& packed) {
  const Settings settings{slopes, attention_mask, epsilon, residual_post_layernorm, axis, packed};
  const at::Tensor input = hidden.contiguous();
  if (!axis.sequence_parallel()) tokens = hidden.sizes().slice(0, 2);
  if (!at::GradMode::is_enabled()) return run_forward(input, tokens, weights, settings, nullptr);
  return std::apply(
      [&](const auto&... w) { return FusedBlock::apply(input, tokens, settings, w...); },
      to_list(weights));
}

at::Tensor bloom_block_inference(const at::Tensor& hidden, const BloomBlockWeights& weights,
                                 double epsilon, bool residual_post_layernorm,
                                 at::IntArrayRef tokens, const TensorAxis& axis,
                                 const std::function<at::Tensor(const at::Tensor&)>& attention) {
  const at::NoGradGuard no_grad;
  const Settings settings{{}, {}, epsilon, residual_post_layernorm, axis, {}};
  const auto attend = [&](const at::Tensor& qkv) {
    return ops::AttentionOutput{attention(qkv), {}};
  };
  return run_forward(hidden.contiguous(), tokens, weights, settings, attend, nullptr);
}

}  // namespace tessera
