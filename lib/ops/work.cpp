// SPDX-License-Identifier: MIT
#include "lib/ops/work.h"

#include <ATen/ATen.h>

namespace tessera::ops::work {
namespace {

double bytes_of(const at::Tensor& x) {
  return x.defined() ? static_cast<double>(x.numel()) * static_cast<double>(x.element_size()) : 0;
}

// Work of a product in which each element of `operand` is used `times` times.
OperationWork product(const at::Tensor& operand, int64_t times) {
  return {.flops = 2 * static_cast<double>(operand.numel()) * static_cast<double>(times)};
}

OperationWork moved(double bytes) { return {.bytes = bytes}; }

// Work of `products` products of [length, d] with [d, length] for every head, below the diagonal.
OperationWork attention(const at::Tensor& qkv, const SelfAttention& attention,
                        const at::Tensor& mask, const PackedRows& packed, int products) {
  if (mask.defined() || attention.window > 0) return {};
  double squares = 0;
  for (const int64_t length : packed.lengths) {
    squares += static_cast<double>(length) * static_cast<double>(length);
  }
  if (!packed.defined()) {
    const auto sequence = static_cast<double>(qkv.size(1));
    squares = static_cast<double>(qkv.size(0)) * sequence * sequence;
  }
  const int64_t columns = qkv.size(2) / (attention.heads + 2 * attention.key_heads);
  return {.flops = products * squares * static_cast<double>(attention.heads * columns)};
}

}  // namespace

OperationWork add_column_sums(ColumnSums& sums) {
  double bytes = 0;
  for (const auto& item : sums.items) bytes += bytes_of(item.partial) + 2 * bytes_of(item.gradient);
  return moved(bytes);
}

OperationWork linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor&,
                             const at::Tensor&, const at::Tensor&) {
  return product(x, weight.size(0));
}

OperationWork linear_backward_input_out(const at::Tensor& gradient, const at::Tensor& weight,
                                        const at::Tensor&) {
  return product(gradient, weight.size(1));
}

OperationWork linear_backward_weight(const at::Tensor& gradient, const at::Tensor& x,
                                     const at::Tensor&, bool) {
  return product(gradient, x.size(-1));
}

OperationWork linear_backward_bias(const at::Tensor& gradient, const at::Tensor&, ColumnSums&) {
  return moved(bytes_of(gradient));
}

OperationWork fp8_largest(const at::Tensor& x, Fp8) { return moved(bytes_of(x)); }

OperationWork fp8_cast(const at::Tensor& x, const at::Tensor&, at::ScalarType) {
  return moved(bytes_of(x) + static_cast<double>(x.numel()));
}

OperationWork fp8_layouts(const at::Tensor& x, const at::Tensor&, at::ScalarType,
                          WantedLayouts wanted) {
  return moved(bytes_of(x) + static_cast<double>(x.numel()) * (wanted.rows + wanted.columns));
}

OperationWork fp8_turned(const Fp8Matrix& x) { return moved(2 * bytes_of(x.codes)); }

OperationWork fp8_decode(const Fp8Matrix& x, const at::Tensor& values) {
  return moved(bytes_of(x.codes) + bytes_of(values));
}

OperationWork fp8_product(const Fp8Matrix& left, const Fp8Matrix& right, at::ScalarType,
                          const Fp8Terms&) {
  return product(left.codes, right.codes.size(0));
}

OperationWork linear_gelu_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor&,
                                  at::Tensor*) {
  return product(x, weight.size(0));
}

OperationWork gelu_tanh_forward(const at::Tensor& x, at::Tensor*) { return moved(2 * bytes_of(x)); }

OperationWork gelu_tanh_backward(const at::Tensor& gradient, const at::Tensor& x) {
  return moved(2 * bytes_of(gradient) + bytes_of(x));
}

OperationWork gelu_tanh_backward_(const at::Tensor& gradient, const at::Tensor& pre_activation,
                                  const at::Tensor&, ColumnSums&, at::Tensor* output, at::Tensor*) {
  return moved(2 * bytes_of(gradient) + bytes_of(pre_activation) * (output ? 2 : 1));
}

OperationWork swiglu_forward(const at::Tensor& gate_up, at::Tensor*) {
  return moved(1.5 * bytes_of(gate_up));
}

OperationWork swiglu_backward_(const at::Tensor& gradient, const at::Tensor& gate_up,
                               at::Tensor* output, at::Tensor*) {
  return moved(bytes_of(gradient) * (output ? 2 : 1) + 2 * bytes_of(gate_up));
}

OperationWork clamped_swiglu_forward(const at::Tensor& gate_up) {
  return moved(1.5 * bytes_of(gate_up));
}

OperationWork clamped_swiglu_backward(const at::Tensor& gradient, const at::Tensor& gate_up) {
  return moved(bytes_of(gradient) + 2 * bytes_of(gate_up));
}

OperationWork grouped_product_into(const at::Tensor& left, const at::Tensor& right,
                                   const at::Tensor&, const at::Tensor&) {
  return product(left, right.size(1));
}

// Without rows that have no values, whose number the device alone knows.
OperationWork dispatch_rows(const at::Tensor& x, const ExpertOrder& order) {
  return moved(bytes_of(x) * (1 + static_cast<double>(order.rows.size(1))));
}

OperationWork combine_rows(const at::Tensor& rows, const ExpertOrder& order, const at::Tensor&) {
  return moved(bytes_of(rows) * (1 + 1 / static_cast<double>(order.rows.size(1))));
}

OperationWork weighted_swiglu(const at::Tensor& gate_up, const at::Tensor&, const ExpertOrder&) {
  return moved(1.5 * bytes_of(gate_up));
}

OperationWork weighted_swiglu_backward_(const at::Tensor& gradient, const at::Tensor& gate_up,
                                        const at::Tensor&, const ExpertOrder&, const at::Tensor&) {
  return moved(2 * bytes_of(gradient) + 2 * bytes_of(gate_up));
}

OperationWork layer_norm_forward(const at::Tensor& x, const at::Tensor&, const at::Tensor&, double,
                                 const at::Tensor& cleared, at::Tensor*) {
  return moved(2 * bytes_of(x) + bytes_of(cleared));
}

OperationWork rms_norm_forward(const at::Tensor& x, const at::Tensor&, double,
                               const at::Tensor& cleared, at::Tensor*) {
  return moved(2 * bytes_of(x) + bytes_of(cleared));
}

OperationWork norm_backward(const at::Tensor& gradient, const NormInput& input,
                            const at::Tensor& residual_gradient,
                            const LayerNormGradients& gradients, ColumnSums&, at::Tensor* output) {
  return moved(bytes_of(gradient) + bytes_of(input.x) * (output ? 3 : 2) +
               bytes_of(residual_gradient) + bytes_of(gradients.cleared));
}

OperationWork dropout_add(const at::Tensor& x, const at::Tensor& residual, const Dropout&) {
  return moved(2 * bytes_of(x) + bytes_of(residual));
}

OperationWork dropout_backward(const at::Tensor& gradient, const Dropout&, const at::Tensor&,
                               ColumnSums&) {
  return moved(2 * bytes_of(gradient));
}

OperationWork rotary_(const at::Tensor& x, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                      bool) {
  return moved(2 * bytes_of(x));
}

OperationWork head_norm_(const at::Tensor&, const SelfAttention&, const HeadNorms&) { return {}; }

OperationWork head_norm_backward_(const at::Tensor&, const SelfAttention&, const HeadNorms&,
                                  const HeadNormInput&, const at::Tensor&, const at::Tensor&,
                                  ColumnSums&) {
  return {};
}

OperationWork attention_forward(const at::Tensor& qkv, const SelfAttention& attention,
                                const at::Tensor& attention_mask, const PackedRows& packed) {
  return work::attention(qkv, attention, attention_mask, packed, 2);
}

OperationWork attention_backward(const at::Tensor&, const at::Tensor& qkv,
                                 const SelfAttention& attention, const at::Tensor& attention_mask,
                                 const AttentionOutput&, const PackedRows& packed) {
  return work::attention(qkv, attention, attention_mask, packed, 5);
}

OperationWork attends_to_sequences(const at::Tensor&, const SelfAttention&, int64_t,
                                   const at::Tensor&, const PackedRows&) {
  return {};
}

OperationWork attention_to_cache(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const CachedRows&, const SelfAttention&) {
  return {};
}

OperationWork keep_in_cache(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                            const at::Tensor&, const PackedRows&) {
  return {};
}

// The number of touched table rows is known on the device only.
OperationWork embedding_backward(const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  return {};
}

OperationWork logits_forward(const at::Tensor& x, const at::Tensor& weight) {
  return product(x, weight.size(0));
}

OperationWork cross_entropy_(const at::Tensor& logits, const at::Tensor&, const at::Tensor& scale,
                             const at::Tensor&) {
  return moved(bytes_of(logits) * (scale.defined() ? 2 : 1));
}

OperationWork cross_entropy_statistics(const at::Tensor& logits, const at::Tensor&,
                                       const at::Tensor&) {
  return moved(bytes_of(logits));
}

OperationWork cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor&,
                                      const at::Tensor&, const at::Tensor& scale,
                                      const at::Tensor&) {
  return moved(scale.defined() ? 2 * bytes_of(logits) : 0);
}

OperationWork adamw_update(std::span<const AdamWRange> ranges, const AdamWOptions&,
                           const AdamWScalars&) {
  double bytes = 0;
  for (const AdamWRange& range : ranges) {
    for (const at::Tensor* both : {&range.parameter, &range.exp_avg, &range.exp_avg_sq,
                                   &range.exp_avg_largest, &range.exp_avg_sq_largest}) {
      bytes += 2 * bytes_of(*both);
    }
    bytes += bytes_of(range.gradient) + bytes_of(range.low_precision);
    if (range.remainder.defined()) {  // a written remainder is read too
      bytes += 2 * bytes_of(range.remainder) + bytes_of(range.low_precision);
    }
  }
  return moved(bytes);
}

OperationWork square_sum(std::span<const at::Tensor> tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += bytes_of(tensor);
  return moved(bytes);
}

OperationWork clipping(const at::Tensor&, const at::Tensor&, double) { return {}; }

}  // namespace tessera::ops::work
