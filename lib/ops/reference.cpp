// SPDX-License-Identifier: MIT
#include "lib/ops/reference.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <limits>

#include "lib/core/meta.h"
#include "lib/ops/counted.h"
#include "lib/ops/packed.h"
#include "lib/ops/random.h"
#include "tessera/core/error.h"

namespace tessera::ops::reference {
namespace {

at::Tensor rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

at::Tensor column_sums(const at::Tensor& x) {
  const at::Tensor staging = counted_staging(rows(x));
  return rows(x).sum(0, true, wide(x));
}

void clear(const at::Tensor& memory) {
  if (memory.defined()) memory.zero_();
}

void collect(const at::Tensor& x, const at::Tensor& gradient, ColumnSums& sums) {
  if (gradient.defined()) sums.items.push_back({column_sums(x), gradient});
}

}  // namespace

void add_column_sums(ColumnSums& sums) {
  for (auto& item : sums.items) item.gradient.add_(item.partial.sum(0));
  sums.items.clear();
}

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& residual, const at::Tensor& result) {
  at::Tensor y = at::linear(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
  if (residual.defined()) y.add_(residual);
  if (!result.defined()) return y;
  result.narrow(0, 0, rows(y).size(0)).copy_(rows(y));
  return result;
}

void linear_backward_input_out(const at::Tensor& gradient, const at::Tensor& weight,
                               const at::Tensor& result) {
  at::Tensor out = rows(result);
  at::mm_out(out, rows(gradient), weight);
}

void linear_backward_weight(const at::Tensor& gradient, const at::Tensor& x,
                            const at::Tensor& weight_gradient, bool add) {
  const at::Tensor left = rows(gradient).t(), right = rows(x);
  at::Tensor out = weight_gradient;
  if (out.scalar_type() == x.scalar_type()) {
    out.addmm_(left, right, /*beta=*/add ? 1 : 0);
  } else if (add) {
    out.add_(at::mm(left, right));
  } else {
    out.copy_(at::mm(left, right));
  }
}

void linear_backward_bias(const at::Tensor& gradient, const at::Tensor& bias_gradient,
                          ColumnSums& sums) {
  collect(gradient, bias_gradient, sums);
}

at::Tensor fp8_largest(const at::Tensor& x, Fp8 scaling) {
  const bool rowwise = scaling == Fp8::kRowwise;
  if (x.numel() == 0) {
    return at::zeros({rowwise ? x.size(0) : 1, 1}, x.options().dtype(at::kFloat));
  }
  const at::Tensor in_order = x.is_contiguous() ? x : x.t();  // as its memory lies, mostly
  const auto [least, most] = rowwise ? at::aminmax(x, 1, /*keepdim=*/true)
                                     : at::aminmax(in_order.reshape({1, -1}), 1, true);
  return at::maximum(most, least.neg()).to(at::kFloat);
}

Fp8Matrix fp8_cast(const at::Tensor& x, const at::Tensor& largest, at::ScalarType dtype) {
  const double largest_code = dtype == at::kFloat8_e5m2 ? 57344.0 : 448.0;
  // By a tensor: GPUs multiply by the reciprocal of a number. A scale below the smallest normal
  // number would be inexact, or 0.
  const at::Tensor quotient = largest / at::full_like(largest, largest_code);
  const at::Tensor scale =
      at::where(largest.eq(0), 1.0, quotient.clamp_min(std::numeric_limits<float>::min()))
          .to(at::kFloat);
  // In fp32; casts to 8 bits round what lies barely past the largest code to it.
  const at::Tensor scaled = (x.scalar_type() == at::kDouble ? x.to(at::kFloat) : x) / scale;
  return {scaled.to(dtype).contiguous(), scale};
}

Fp8Layouts fp8_layouts(const at::Tensor& x, const at::Tensor& largest, at::ScalarType dtype,
                       WantedLayouts wanted) {
  const Fp8Matrix rows = fp8_cast(x, largest, dtype);
  Fp8Layouts result;
  if (wanted.rows) result.rows = rows;
  if (wanted.columns) result.columns = reference::fp8_turned(rows);
  return result;
}

Fp8Matrix fp8_turned(const Fp8Matrix& x) {
  const int64_t missing = (16 - x.codes.size(0) % 16) % 16;
  at::Tensor turned = x.codes.view(at::kByte).t();
  turned = missing > 0 ? at::constant_pad_nd(turned, {0, missing}) : turned.contiguous();
  return {turned.view(x.codes.scalar_type()), x.scale};
}

void fp8_decode(const Fp8Matrix& x, const at::Tensor& values) {
  at::Tensor(values).copy_(x.codes.to(at::kFloat).mul_(x.scale.squeeze()));
}

at::Tensor fp8_product(const Fp8Matrix& left, const Fp8Matrix& right, at::ScalarType dtype,
                       const Fp8Terms& terms) {
  at::Tensor sums = at::mm(left.codes.to(at::kFloat), right.codes.to(at::kFloat).t());
  sums.mul_(left.scale).mul_(right.scale.t());
  const at::ScalarType written = terms.result.defined() ? terms.result.scalar_type() : dtype;
  if (written == at::kDouble) sums = sums.to(at::kDouble);
  if (terms.bias.defined()) sums.add_(terms.bias);
  if (terms.residual.defined()) sums.add_(terms.residual);
  if (!terms.result.defined()) return sums.to(dtype);
  if (terms.add) sums.add_(terms.result);
  return at::Tensor(terms.result).copy_(sums);
}

LayerNormOutput layer_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                   const at::Tensor& bias, double epsilon,
                                   const at::Tensor& cleared, at::Tensor* largest) {
  clear(cleared);
  const auto type = wide(x);
  auto [output, mean, rstd] =
      at::native_layer_norm(x.to(type), {x.size(-1)}, weight.to(type), bias.to(type), epsilon);
  return {with_largest(output.to(x.scalar_type()), largest), mean.reshape(-1), rstd.reshape(-1)};
}

RmsNormOutput rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                               const at::Tensor& cleared, at::Tensor* largest) {
  clear(cleared);
  const at::Tensor wide_x = x.to(wide(x));
  const at::Tensor rstd = (wide_x.square().mean(-1, true) + epsilon).rsqrt_();
  const at::Tensor output = (wide_x * rstd).mul_(weight).to(x.scalar_type());
  return {with_largest(output, largest), rstd.reshape(-1)};
}

at::Tensor norm_backward(const at::Tensor& gradient, const NormInput& input,
                         const at::Tensor& residual_gradient, const LayerNormGradients& gradients,
                         ColumnSums& sums, at::Tensor* output) {
  clear(gradients.cleared);
  const auto& [x, mean, rstd, weight, bias] = input;
  const auto type = wide(x);
  const at::Tensor wide_weight = weight.to(type), dy = rows(gradient).to(type);
  const at::Tensor normal =
      (mean.defined() ? rows(x).to(type) - mean.unsqueeze(1) : rows(x).to(type)) *
      rstd.unsqueeze(1);
  const at::Tensor scaled = dy * wide_weight;
  at::Tensor dx;
  if (mean.defined()) {
    dx = scaled - scaled.mean(1, true);
    dx.sub_(normal * (scaled * normal).mean(1, true));
  } else {
    dx = scaled - normal * (scaled * normal).mean(1, true);
  }
  dx.mul_(rstd.unsqueeze(1));
  if (residual_gradient.defined()) dx.add_(rows(residual_gradient));
  collect(dy * normal, gradients.weight, sums);
  if (bias.defined()) collect(dy, gradients.bias, sums);
  dx = dx.to(x.scalar_type());
  collect(dx, gradients.column_sum, sums);
  if (gradients.columns) *gradients.columns = column_sums(dx);
  if (output) {
    const at::Tensor y =
        bias.defined() ? at::addcmul(bias.to(type), normal, wide_weight) : normal * wide_weight;
    *output = y.to(x.scalar_type()).view(x.sizes());
  }
  return with_largest(dx.view(x.sizes()), gradients.largest);
}

at::Tensor dropout_add(const at::Tensor& x, const at::Tensor& residual, const Dropout& dropout) {
  at::Tensor y = dropout_factors(x.sizes(), wide(x), dropout, x.device()).mul_(x);
  if (residual.defined()) y.add_(residual);
  return y.to(x.scalar_type());
}

at::Tensor dropout_backward(const at::Tensor& gradient, const Dropout& dropout,
                            const at::Tensor& bias_gradient, ColumnSums& sums) {
  at::Tensor result = ops::dropout_add(gradient, {}, dropout);
  if (bias_gradient.defined()) ops::linear_backward_bias(result, bias_gradient, sums);
  return result;
}

void rotary_(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
             const at::Tensor& positions, bool back) {
  const auto of_tokens = [&](const at::Tensor& table) {  // [..., sequence, 1, d/2]
    return (positions.defined() ? at::embedding(table, positions) : table.narrow(0, 0, x.size(1)))
        .unsqueeze(-2);
  };
  const at::Tensor c = of_tokens(cos), s = back ? of_tokens(sin).neg() : of_tokens(sin);
  at::Tensor first = x.narrow(3, 0, x.size(3) / 2),
             second = x.narrow(3, x.size(3) / 2, x.size(3) / 2);
  const at::Tensor turned = first * c - second * s;
  second.copy_(second * c + first * s);
  first.copy_(turned);
}

namespace {

// Normalised queries and keys [batch, sequence, heads + key_heads, d], and a weight for each of
// these heads.
at::Tensor normed_heads(const at::Tensor& qkv, const SelfAttention& a) {
  return qkv.unflatten(-1, {a.heads + 2 * a.key_heads, -1}).narrow(-2, 0, a.heads + a.key_heads);
}
at::Tensor by_head(const HeadNorms& norms, const SelfAttention& a) {
  return at::cat({norms.query.expand({a.heads, -1}), norms.key.expand({a.key_heads, -1})});
}

// Scores of longer rows would fill a GPU: where no deterministic kernel attends to them, the run
// ends before it.
void require_room_for_scores(const at::Tensor& qkv) {
  constexpr int64_t kLongest = 16384;
  check(!at::globalContext().deterministicAlgorithms() || !runs_on_gpu(qkv) ||
            qkv.size(1) <= kLongest,
        ErrorCode::kInvalidArgument,
        "--deterministic: this GPU has no deterministic kernel for "
        "this attention, which would form the ",
        qkv.size(1), " x ", qkv.size(1), " scores of a row; rows of at most ", kLongest,
        " tokens (--max_seq_length), or no --deterministic");
}

struct Scores {
  at::Tensor q, k, v;  // [batch, heads, sequence, d], wide; keys repeated for each query head
  at::Tensor scores;   // [batch, heads, sequence, sequence], -inf where not visible
  int64_t groups;

  Scores(const at::Tensor& qkv, const SelfAttention& attention, const at::Tensor& mask)
      : groups(attention.heads / attention.key_heads) {
    require_room_for_scores(qkv);
    const int64_t batch = qkv.size(0), sequence = qkv.size(1);
    const auto parts = split_heads(qkv.to(wide(qkv)), attention);
    q = parts.q.transpose(1, 2);
    k = parts.k.transpose(1, 2).repeat_interleave(groups, 1);
    v = parts.v.transpose(1, 2).repeat_interleave(groups, 1);
    const at::Tensor position = at::arange(sequence, qkv.options().dtype(at::kFloat));
    const at::Tensor distance = position.unsqueeze(0) - position.unsqueeze(1);
    scores = at::matmul(q, k.transpose(2, 3)).mul_(attention.scale);
    if (attention.slopes.defined()) {
      scores.add_(attention.slopes.to(wide(qkv)).view({-1, 1, 1}) * distance);
    }
    at::Tensor hidden = (distance > 0).view({1, 1, sequence, sequence});
    if (attention.window > 0) hidden = hidden.logical_or(distance <= -attention.window);
    if (mask.defined()) {
      hidden = hidden.logical_or(mask.logical_not().view({batch, 1, 1, sequence}));
    }
    scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  }

  // Dropout factors of the probabilities; undefined: no dropout.
  at::Tensor factors(const AttentionDropout& dropout) const {
    if (!dropout.on()) return {};
    return attention_factors(scores.sizes(), scores.scalar_type(), dropout, scores.device());
  }
};

SelfAttention of_row(const SelfAttention& attention, size_t row) {
  SelfAttention result = attention;
  result.dropout.seed = mixed_seed(attention.dropout.seed, static_cast<int64_t>(row));
  return result;
}

}  // namespace

HeadNormInput head_norm_(const at::Tensor& qkv, const SelfAttention& attention,
                         const HeadNorms& norms) {
  const at::Tensor heads = normed_heads(qkv, attention);
  const HeadNormInput input{
      heads.clone(at::MemoryFormat::Contiguous),
      heads.to(wide(qkv)).square().mean(-1, true).add_(norms.epsilon).rsqrt_()};
  heads.copy_(input.x.to(wide(qkv)).mul(input.rstd).mul_(by_head(norms, attention)));
  return input;
}

void head_norm_backward_(const at::Tensor& gradient, const SelfAttention& attention,
                         const HeadNorms& norms, const HeadNormInput& input,
                         const at::Tensor& query, const at::Tensor& key, ColumnSums& sums) {
  const at::Tensor heads = normed_heads(gradient, attention);
  const at::Tensor dy = heads.to(wide(gradient)), normed = input.x.to(wide(gradient)) * input.rstd;
  const at::Tensor columns = (dy * normed).flatten(0, -3).sum(0);  // [heads, d]
  const auto add = [&](const at::Tensor& to, int64_t first, int64_t count) {
    if (to.defined()) sums.items.push_back({columns.narrow(0, first, count), to});
  };
  add(query, 0, attention.heads);
  add(key, attention.heads, attention.key_heads);
  const at::Tensor weighted = dy * by_head(norms, attention).to(wide(gradient));
  heads.copy_(weighted.sub(normed * (weighted * normed).mean(-1, true)).mul_(input.rstd));
}

bool attends_to_sequences(const at::Tensor&, const SelfAttention&, int64_t, const at::Tensor&,
                          const PackedRows&) {
  return false;
}

AttentionOutput attention_forward(const at::Tensor& qkv, const SelfAttention& attention,
                                  const at::Tensor& attention_mask, const PackedRows& packed) {
  if (packed.defined()) {
    std::vector<at::Tensor> outputs, log_sum_exps;
    for (const at::Tensor& row : each_row(qkv, packed)) {
      const AttentionOutput alone =
          reference::attention_forward(row, of_row(attention, outputs.size()), {}, {});
      outputs.push_back(alone.output);
      log_sum_exps.push_back(alone.log_sum_exp);
    }
    return {at::cat(outputs, 1).view({qkv.size(0), qkv.size(1), -1}), at::cat(log_sum_exps, 2)};
  }
  const Scores s(qkv, attention, attention_mask);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  at::Tensor log_sum_exp = s.scores.logsumexp(3);
  // exp(-inf - inf) = 0: the probabilities of a query without visible keys are 0.
  log_sum_exp.masked_fill_(log_sum_exp.eq(-infinity), infinity);
  const at::Tensor probability = (s.scores - log_sum_exp.unsqueeze(3)).exp_();
  const at::Tensor factors = s.factors(attention.dropout);
  if (factors.defined()) probability.mul_(factors);
  const at::Tensor output = at::matmul(probability, s.v);
  return {output.transpose(1, 2).to(qkv.scalar_type()).flatten(2), log_sum_exp};
}

at::Tensor attention_backward(const at::Tensor& gradient, const at::Tensor& qkv,
                              const SelfAttention& attention, const at::Tensor& attention_mask,
                              const AttentionOutput& forward, const PackedRows& packed) {
  if (packed.defined()) {
    const auto gradients = each_row(gradient, packed), rows = each_row(qkv, packed),
               outputs = each_row(forward.output, packed),
               log_sum_exps = forward.log_sum_exp.split_with_sizes(packed.lengths, 2);
    std::vector<at::Tensor> results;
    for (size_t i = 0; i < rows.size(); ++i) {
      results.push_back(reference::attention_backward(gradients[i], rows[i], of_row(attention, i),
                                                      {}, {outputs[i], log_sum_exps[i]}, {}));
    }
    return at::cat(results, 1).view(qkv.sizes());
  }
  const Scores s(qkv, attention, attention_mask);
  const auto by_head = [&](const at::Tensor& x) {
    return x.to(wide(x)).unflatten(2, {attention.heads, -1}).transpose(1, 2);
  };
  const at::Tensor dy = by_head(gradient);
  const at::Tensor probability = (s.scores - forward.log_sum_exp.unsqueeze(3)).exp_();
  at::Tensor dscores = at::matmul(dy, s.v.transpose(2, 3));
  const at::Tensor factors = s.factors(attention.dropout);
  if (factors.defined()) dscores.mul_(factors);
  dscores.sub_((dy * by_head(forward.output)).sum(3, true)).mul_(probability).mul_(attention.scale);
  at::Tensor result = at::empty_like(qkv);
  auto [dq, dk, dv] = split_heads(result, attention);
  const auto of_keys = [&](const at::Tensor& x) {  // sums over the query heads of a key head
    return x.unflatten(1, {attention.key_heads, s.groups}).sum(2).transpose(1, 2);
  };
  dq.copy_(at::matmul(dscores, s.k).transpose(1, 2));
  dk.copy_(of_keys(at::matmul(dscores.transpose(2, 3), s.q)));
  if (factors.defined()) probability.mul_(factors);
  dv.copy_(of_keys(at::matmul(probability.transpose(2, 3), dy)));
  return result;
}

}  // namespace tessera::ops::reference
