#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>

#include "tessera/models/bloom_block.h"
#include "tessera/ops/kernels.h"

namespace tessera {
namespace {

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
};

// What forward leaves for backward. The norms' outputs and the GELU's are formed anew there.
struct Saved {
  at::Tensor hidden, mean1, rstd1, qkv, context, log_sum_exp, attended, mean2, rstd2, inner;
};

at::Tensor run_forward(const at::Tensor& hidden, const BloomBlockWeights& w,
                       const Settings& settings, Saved* saved) {
  const auto norm1 =
      ops::layer_norm_forward(hidden, w.input_norm_weight, w.input_norm_bias, settings.epsilon);
  const at::Tensor qkv = ops::linear_forward(norm1.output, w.qkv_weight, w.qkv_bias);
  const auto attention =
      ops::alibi_attention_forward(qkv, settings.slopes, settings.attention_mask);
  const at::Tensor attended = ops::linear_forward(attention.output, w.dense_weight, w.dense_bias,
                                                  settings.post ? norm1.output : hidden);
  const auto norm2 = ops::layer_norm_forward(attended, w.attention_norm_weight,
                                             w.attention_norm_bias, settings.epsilon);
  at::Tensor inner;
  const at::Tensor active =
      ops::linear_gelu_forward(norm2.output, w.up_weight, w.up_bias, saved ? &inner : nullptr);
  if (saved) {
    *saved = {hidden,   norm1.mean, norm1.rstd, qkv,  attention.output, attention.log_sum_exp,
              attended, norm2.mean, norm2.rstd, inner};
  }
  return ops::linear_forward(active, w.down_weight, w.down_bias,
                             settings.post ? norm2.output : attended);
}

// Adds all weight gradients to the tensors in g, whose undefined members are not wanted.
at::Tensor run_backward(const at::Tensor& gradient, const BloomBlockWeights& w,
                        const BloomBlockWeights& g, const Settings& settings, const Saved& s) {
  ops::ColumnSums sums;
  const auto add_weight = [](const at::Tensor& dy, const at::Tensor& x, const at::Tensor& to) {
    if (to.defined()) ops::linear_backward_weight(dy, x, to);
  };
  const auto add_bias = [&](const at::Tensor& dy, const at::Tensor& to) {
    if (to.defined()) ops::linear_backward_bias(dy, to, sums);
  };
  const at::Tensor no_residual;
  at::Tensor dattended;
  {
    const at::Tensor dinner = ops::linear_backward_input(gradient, w.down_weight);
    at::Tensor active = ops::gelu_tanh_backward_(dinner, s.inner, g.up_bias, sums);
    add_weight(gradient, active, g.down_weight);
    add_bias(gradient, g.down_bias);
    active.reset();
    at::Tensor dnorm = ops::linear_backward_input(dinner, w.up_weight), norm;
    if (settings.post) dnorm.add_(gradient);
    dattended = ops::layer_norm_backward(
        dnorm, s.attended, s.mean2, s.rstd2, w.attention_norm_weight, w.attention_norm_bias,
        settings.post ? no_residual : gradient,
        {g.attention_norm_weight, g.attention_norm_bias, g.dense_bias}, sums, &norm);
    add_weight(dinner, norm, g.up_weight);
  }
  const at::Tensor dcontext = ops::linear_backward_input(dattended, w.dense_weight);
  add_weight(dattended, s.context, g.dense_weight);
  const at::Tensor dqkv = ops::alibi_attention_backward(
      dcontext, s.qkv, settings.slopes, settings.attention_mask, {s.context, s.log_sum_exp});
  at::Tensor dnorm = ops::linear_backward_input(dqkv, w.qkv_weight), norm;
  if (settings.post) dnorm.add_(dattended);
  const at::Tensor dhidden =
      ops::layer_norm_backward(dnorm, s.hidden, s.mean1, s.rstd1, w.input_norm_weight,
                               w.input_norm_bias, settings.post ? no_residual : dattended,
                               {g.input_norm_weight, g.input_norm_bias, {}}, sums, &norm);
  add_weight(dqkv, norm, g.qkv_weight);
  add_bias(dqkv, g.qkv_bias);
  ops::add_column_sums(sums);
  return dhidden;
}

class FusedBlock : public torch::autograd::Function<FusedBlock> {
 public:
  // The weights are arguments of their own so that autograd sees them; backward reads them through
  // their handles, whose storage a strategy may have replaced in between.
  template <typename... Weights>
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const Settings& settings, const Weights&... weights) {
    const WeightList list{weights...};
    Saved s;
    const at::Tensor output = run_forward(hidden, from_list(list), settings, &s);
    context->save_for_backward({s.hidden, s.mean1, s.rstd1, s.qkv, s.context, s.log_sum_exp,
                                s.attended, s.mean2, s.rstd2, s.inner});
    context->saved_data["weights"] = std::vector<at::Tensor>(list.begin(), list.end());
    context->saved_data["slopes"] = settings.slopes;
    if (settings.attention_mask.defined()) context->saved_data["mask"] = settings.attention_mask;
    context->saved_data["post"] = settings.post;
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& data = context->saved_data;
    const std::vector<at::Tensor> weights = data["weights"].toTensorVector();
    const auto mask = data.find("mask");
    const Settings settings{data["slopes"].toTensor(),
                            mask == data.end() ? at::Tensor() : mask->second.toTensor(), 0.0,
                            data["post"].toBool()};
    const variable_list v = context->get_saved_variables();
    const Saved saved{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9]};
    variable_list result(2 + kWeights);  // hidden, settings, weights
    WeightList list, sinks;
    for (int i = 0; i < kWeights; ++i) {
      list[i] = weights[i];
      if (!weights[i].requires_grad()) continue;
      sinks[i] = weights[i].grad();
      if (!sinks[i].defined()) sinks[i] = result[2 + i] = at::zeros_like(weights[i]);
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
                             const TensorAxis& axis) {
  if (axis.size() > 1) {
    return bloom_block_composed(hidden, weights, slopes, attention_mask, epsilon,
                                residual_post_layernorm, tokens, axis);
  }
  const Settings settings{slopes, attention_mask, epsilon, residual_post_layernorm};
  const at::Tensor input = hidden.contiguous();
  if (!at::GradMode::is_enabled()) return run_forward(input, weights, settings, nullptr);
  return std::apply([&](const auto&... w) { return FusedBlock::apply(input, settings, w...); },
                    to_list(weights));
}

}  // namespace tessera
