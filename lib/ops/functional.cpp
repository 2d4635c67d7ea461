// SPDX-License-Identifier: MIT
#include "tessera/ops/functional.h"

#include <ATen/ATen.h>

#include <cmath>

#include "lib/core/deferred_embedding_rows.h"
#include "lib/ops/autograd.h"
#include "lib/ops/saved_value.h"
#include "tessera/core/error.h"
#include "tessera/ops/kernels.h"

namespace tessera::ops {
namespace {

class LayerNorm : public Function<LayerNorm> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, double epsilon) {
    const at::Tensor input = x.contiguous();
    const LayerNormOutput result = layer_norm_forward(input, weight, bias, epsilon);
    context->save_for_backward({input, weight, bias, result.mean, result.rstd});
    return result.output;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const LayerNormGradients sinks{at::zeros_like(saved[1]), at::zeros_like(saved[2]), {}};
    ColumnSums sums;
    at::Tensor dx =
        norm_backward(gradients[0].contiguous(), {saved[0], saved[3], saved[4], saved[1], saved[2]},
                      {}, sinks, sums);
    add_column_sums(sums);
    return {dx, sinks.weight, sinks.bias, {}};
  }
};

class RmsNorm : public Function<RmsNorm> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double epsilon) {
    const at::Tensor input = x.contiguous();
    const RmsNormOutput result = rms_norm_forward(input, weight, epsilon);
    context->save_for_backward({input, weight, result.rstd});
    return result.output;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const LayerNormGradients sinks{at::zeros_like(saved[1]), {}, {}};
    ColumnSums sums;
    at::Tensor dx =
        norm_backward(gradients[0].contiguous(),
                      {.x = saved[0], .rstd = saved[2], .weight = saved[1]}, {}, sinks, sums);
    add_column_sums(sums);
    return {dx, sinks.weight, {}};
  }
};

class SwiGlu : public Function<SwiGlu> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate,
                            const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return at::silu(gate).mul_(up);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1], &dy = gradients[0];
    return {at::silu_backward(dy * up, gate), at::silu(gate).mul_(dy)};
  }
};

class GeluTanh : public Function<GeluTanh> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    const at::Tensor input = x.contiguous();
    context->save_for_backward({input});
    return gelu_tanh_forward(input);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gelu_tanh_backward(gradients[0].contiguous(), context->get_saved_variables()[0])};
  }
};

class AlibiAttention : public Function<AlibiAttention> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv,
                            const SelfAttention& attention, const std::optional<at::Tensor>& given,
                            const PackedRows& packed) {
    const at::Tensor mask = given.value_or(at::Tensor());
    const at::Tensor input = qkv.contiguous();
    const AttentionOutput result = attention_forward(input, attention, mask, packed);
    save_value(context, "attention", attention);
    save_value(context, "packed", packed);
    context->save_for_backward(
        {input, mask, result.output, result.log_sum_exp, result.random_state});
    return result.output;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    return {attention_backward(gradients[0].contiguous(), saved[0],
                               saved_value<SelfAttention>(context, "attention"), saved[1],
                               {saved[2], saved[3], saved[4]},
                               saved_value<PackedRows>(context, "packed")),
            {},
            {},
            {}};
  }
};

class Embedding : public Function<Embedding> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& ids,
                            const at::Tensor& weight,
                            std::shared_ptr<DeferredEmbeddingRows> deferred_rows) {
    context->save_for_backward({ids});
    context->saved_data["weight"] = weight;
    save_value(context, "deferred_rows", std::move(deferred_rows));
    return at::embedding(weight, ids);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor ids = context->get_saved_variables()[0];
    const at::Tensor weight = context->saved_data["weight"].toTensor();
    const bool direct = weight.grad().defined();
    const at::Tensor target = direct ? weight.grad() : at::zeros_like(weight);
    const at::Tensor rows = gradients[0].contiguous();
    const auto& late =
        saved_value<std::shared_ptr<DeferredEmbeddingRows>>(context, "deferred_rows");
    const bool taken = direct && late != nullptr && late->hand_over(target, ids, rows);
    if (!taken) embedding_backward(rows, ids, target);
    return {{}, direct ? at::Tensor() : target, {}};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::linear(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

at::Tensor linear_in_out(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor rows = x.flatten(0, -2);
  const at::Tensor y = bias.defined() ? at::addmm(bias, rows, weight) : at::mm(rows, weight);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(1);
  return y.view(shape);
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double epsilon) {
  check(weight.dim() == 1 && weight.sizes() == bias.sizes() && x.size(-1) == weight.numel(),
        ErrorCode::kInvalidArgument, "layer_norm: x has ", x.size(-1), " columns, weight shape ",
        weight.sizes(), ", bias shape ", bias.sizes(), "; all must agree.");
  return LayerNorm::apply(x, weight, bias, epsilon);
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  check(weight.dim() == 1 && x.size(-1) == weight.numel(), ErrorCode::kInvalidArgument,
        "rms_norm: x has ", x.size(-1), " columns, weight shape ", weight.sizes(),
        "; both must agree.");
  return RmsNorm::apply(x, weight, epsilon);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  check(gate.sizes() == up.sizes(), ErrorCode::kInvalidArgument, "swiglu: gate has shape ",
        gate.sizes(), ", up ", up.sizes(), "; both must agree.");
  return SwiGlu::apply(gate, up);
}

at::Tensor gelu_tanh(const at::Tensor& x) { return GeluTanh::apply(x); }

at::Tensor alibi_slopes(int64_t heads) {
  check(heads > 0, ErrorCode::kInvalidArgument, "alibi_slopes: ", heads,
        " heads; at least one is needed.");
  int64_t power = 1;
  while (power * 2 <= heads) power *= 2;
  at::Tensor slopes = at::empty({heads}, at::kFloat);
  for (int64_t i = 0; i < heads; ++i) {
    const double exponent = i < power ? 8.0 * double(i + 1) / double(power)
                                      : 4.0 * double(2 * (i - power) + 1) / double(power);
    slopes.data_ptr<float>()[i] = static_cast<float>(std::exp2(-exponent));
  }
  return slopes;
}

at::Tensor alibi_attention(const at::Tensor& qkv, const at::Tensor& slopes,
                           const at::Tensor& attention_mask, const PackedRows& packed,
                           const AttentionDropout& dropout) {
  SelfAttention attention = alibi(slopes, qkv.size(2) / (3 * slopes.numel()));
  attention.dropout = dropout;
  return AlibiAttention::apply(qkv, attention, std::optional(attention_mask), packed);
}

at::Tensor embedding(const at::Tensor& ids, const at::Tensor& weight,
                     const std::shared_ptr<DeferredEmbeddingRows>& deferred_rows) {
  return Embedding::apply(ids, weight, deferred_rows);
}

}  // namespace tessera::ops
