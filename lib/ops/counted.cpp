// SPDX-License-Identifier: MIT
#include "lib/ops/counted.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "lib/core/meta.h"
#include "lib/ops/counted_attention.h"
#include "lib/ops/norm_groups.h"

namespace tessera::ops {
namespace counted {
namespace {

int64_t row_count(const at::Tensor& x) { return x.numel() / x.size(-1); }

// Conditions of the CUDA kernels, see lib/ops/cuda.
bool can_multiply(const at::Tensor& x, const at::Tensor& weight) {
  return is_16_bit(x) && x.scalar_type() == weight.scalar_type() && x.size(-1) % 8 == 0 &&
         weight.size(0) % 8 == 0;
}

void count_largest(at::Tensor* largest, const at::Tensor& like) {
  if (largest) *largest = empty_fp32({1, 1}, like);
}

constexpr int64_t kColumnParts = 32, kGeluParts = 48;
at::Tensor partial_columns(const at::Tensor& x, int64_t parts = kColumnParts) {
  return empty_fp32({parts, x.size(-1)}, x);
}

bool norm_fits(const at::Tensor& x) {
  return is_16_bit(x) && x.size(-1) % 8 == 0 && x.size(-1) <= kMaxNormColumns;
}

}  // namespace

void add_column_sums(ColumnSums& sums) { sums.items.clear(); }

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& residual, const at::Tensor& result) {
  if (!can_multiply(x, weight)) return reference::linear_forward(x, weight, bias, residual, result);
  if (result.defined()) return result;
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return at::empty(shape, x.options());
}

void linear_backward_input_out(const at::Tensor& gradient, const at::Tensor& weight,
                               const at::Tensor& result) {
  if (!is_16_bit(gradient)) reference::linear_backward_input_out(gradient, weight, result);
}

void linear_backward_weight(const at::Tensor& gradient, const at::Tensor& x,
                            const at::Tensor& weight_gradient, bool add) {
  const bool takes = weight_gradient.scalar_type() == x.scalar_type() ||
                     weight_gradient.scalar_type() == at::kFloat;
  if (is_16_bit(x) && takes && x.size(-1) % 8 == 0) return;
  reference::linear_backward_weight(gradient, x, weight_gradient, add);
}

void linear_backward_bias(const at::Tensor& gradient, const at::Tensor& bias_gradient,
                          ColumnSums& sums) {
  if (!is_16_bit(gradient) || gradient.size(-1) % 64 != 0) {
    return reference::linear_backward_bias(gradient, bias_gradient, sums);
  }
  sums.items.push_back({partial_columns(gradient), bias_gradient});
}

at::Tensor fp8_largest(const at::Tensor& x, Fp8 scaling) {
  if (!fp8_cast_fits(x)) return reference::fp8_largest(x, scaling);
  return empty_fp32({scaling == Fp8::kRowwise ? x.size(0) : 1, 1}, x);
}

Fp8Matrix fp8_cast(const at::Tensor& x, const at::Tensor& largest, at::ScalarType dtype) {
  if (!fp8_cast_fits(x)) return reference::fp8_cast(x, largest, dtype);
  return {at::empty(x.sizes(), x.options().dtype(dtype)), at::empty_like(largest)};
}

Fp8Layouts fp8_layouts(const at::Tensor& x, const at::Tensor& largest, at::ScalarType dtype,
                       WantedLayouts wanted) {
  if (!fp8_layouts_fit(x)) return reference::fp8_layouts(x, largest, dtype, wanted);
  const at::Tensor scale = at::empty_like(largest);
  const auto codes = [&](int64_t rows, int64_t inner) {
    return Fp8Matrix{at::empty({rows, inner}, x.options().dtype(dtype)), scale};
  };
  Fp8Layouts result;
  if (wanted.rows) result.rows = codes(x.size(0), x.size(1));
  if (wanted.columns) result.columns = codes(x.size(1), (x.size(0) + 15) / 16 * 16);
  return result;
}

Fp8Matrix fp8_turned(const Fp8Matrix& x) {
  if (!fp8_turned_fits(x)) return reference::fp8_turned(x);
  const int64_t stride = (x.codes.size(0) + 15) / 16 * 16;
  return {at::empty({x.codes.size(1), stride}, x.codes.options()), x.scale};
}

void fp8_decode(const Fp8Matrix& x, const at::Tensor& values) {
  const bool known = values.scalar_type() != at::kDouble;
  if (!known || x.codes.numel() % 16 != 0) return reference::fp8_decode(x, values);
  at::Tensor(values).copy_(x.codes);  // moves no bytes, but dry runs follow values by copies
}

at::Tensor fp8_product(const Fp8Matrix& left, const Fp8Matrix& right, at::ScalarType dtype,
                       const Fp8Terms& terms) {
  if (terms.result.defined()) dtype = terms.result.scalar_type();
  if (!fp8_product_fits(left, right, dtype)) {
    return reference::fp8_product(left, right, dtype, terms);
  }
  const int64_t rows = left.codes.size(0), columns = right.codes.size(0);
  const int64_t inner = left.codes.size(1), whole = (inner + 15) / 16 * 16;
  at::Tensor left_filled, right_filled;
  if (whole != inner) {
    left_filled = at::empty({rows, whole}, left.codes.options());
    right_filled = at::empty({columns, whole}, right.codes.options());
  }
  const bool tensorwise = left.scale.numel() == 1 && right.scale.numel() == 1;
  if (tensorwise && terms.result.defined() && terms.result.is_contiguous()) return terms.result;
  const at::ScalarType written = tensorwise ? dtype : at::kBFloat16;
  const at::Tensor product = at::empty({rows, columns}, left.codes.options().dtype(written));
  if (terms.result.defined()) return terms.result;
  return written == dtype ? product : at::empty_like(product, product.options().dtype(dtype));
}

at::Tensor linear_gelu_forward(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, at::Tensor* pre_activation) {
  if (!can_multiply(x, weight) || !bias.defined()) {
    return reference::linear_gelu_forward(x, weight, bias, pre_activation);
  }
  const at::Tensor y = linear_forward(x, weight, bias, {}, {});
  if (pre_activation) *pre_activation = at::empty_like(y);
  return y;
}

at::Tensor gelu_tanh_forward(const at::Tensor& x, at::Tensor* largest) {
  const at::Tensor y = at::empty_like(x);
  count_largest(largest, x);
  return y;
}
at::Tensor gelu_tanh_backward(const at::Tensor& gradient, const at::Tensor&) {
  return at::empty_like(gradient);
}

void gelu_tanh_backward_(const at::Tensor& gradient, const at::Tensor& pre_activation,
                         const at::Tensor& bias_gradient, ColumnSums& sums, at::Tensor* output,
                         at::Tensor* largest) {
  if (!is_16_bit(gradient) || gradient.size(-1) % 64 != 0) {
    return reference::gelu_tanh_backward_(gradient, pre_activation, bias_gradient, sums, output,
                                          largest);
  }
  count_largest(largest, gradient);
  if (output) *output = at::empty_like(pre_activation);
  const at::Tensor partial = partial_columns(gradient, kGeluParts);
  if (bias_gradient.defined()) sums.items.push_back({partial, bias_gradient});
}

at::Tensor dropout_add(const at::Tensor& x, const at::Tensor&, const Dropout&) {
  return at::empty_like(x);
}

at::Tensor dropout_backward(const at::Tensor& gradient, const Dropout&,
                            const at::Tensor& bias_gradient, ColumnSums& sums) {
  const at::Tensor result = at::empty_like(gradient);
  if (bias_gradient.defined()) counted::linear_backward_bias(result, bias_gradient, sums);
  return result;
}

at::Tensor swiglu_forward(const at::Tensor& gate_up, at::Tensor* largest) {
  if (!is_16_bit(gate_up) || gate_up.size(-1) % 16) {
    return reference::swiglu_forward(gate_up, largest);
  }
  count_largest(largest, gate_up);
  std::vector<int64_t> shape = gate_up.sizes().vec();
  shape.back() /= 2;
  return at::empty(shape, gate_up.options());
}

at::Tensor swiglu_backward_(const at::Tensor& dy, const at::Tensor& gate_up, at::Tensor* output,
                            at::Tensor* largest) {
  if (!is_16_bit(dy) || dy.size(-1) % 8) {
    return reference::swiglu_backward_(dy, gate_up, output, largest);
  }
  count_largest(largest, gate_up);
  if (output) *output = dy;
  return at::empty_like(gate_up);
}

at::Tensor clamped_swiglu_forward(const at::Tensor& gate_up) {
  if (!is_16_bit(gate_up) || gate_up.size(-1) % 16) {
    return reference::clamped_swiglu_forward(gate_up);
  }
  std::vector<int64_t> shape = gate_up.sizes().vec();
  shape.back() /= 2;
  return at::empty(shape, gate_up.options());
}

at::Tensor clamped_swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  if (!is_16_bit(dy) || dy.size(-1) % 8) return reference::clamped_swiglu_backward(dy, gate_up);
  return at::empty_like(gate_up);
}

bool grouped_product_into(const at::Tensor& left, const at::Tensor& right, const at::Tensor&,
                          const at::Tensor& result) {
  return left.scalar_type() == at::kBFloat16 && result.scalar_type() == at::kBFloat16 &&
         left.size(0) % 8 == 0 && right.size(1) % 8 == 0;
}

at::Tensor dispatch_rows(const at::Tensor& x, const ExpertOrder& order) {
  if (!is_16_bit(x) || x.size(-1) % 8) return reference::dispatch_rows(x, order);
  return at::empty({order.tokens.size(0), x.size(-1)}, x.options());
}

at::Tensor combine_rows(const at::Tensor& rows, const ExpertOrder& order,
                        const at::Tensor& foreign) {
  if (!is_16_bit(rows) || rows.size(-1) % 8) return reference::combine_rows(rows, order, foreign);
  return at::empty({order.rows.size(0), rows.size(-1)}, rows.options());
}

at::Tensor weighted_swiglu(const at::Tensor& gate_up, const at::Tensor& weights,
                           const ExpertOrder& order) {
  if (!is_16_bit(gate_up) || gate_up.size(-1) % 16) {
    return reference::weighted_swiglu(gate_up, weights, order);
  }
  return at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
}

WeightedSwigluBackward weighted_swiglu_backward_(const at::Tensor& dy, const at::Tensor& gate_up,
                                                 const at::Tensor& weights,
                                                 const ExpertOrder& order,
                                                 const at::Tensor& foreign) {
  if (!is_16_bit(dy) || dy.size(-1) % 8) {
    return reference::weighted_swiglu_backward_(dy, gate_up, weights, order, foreign);
  }
  return {.output = dy,
          .gate_up = at::empty_like(gate_up),
          .weights = at::empty(order.rows.sizes(), weights.options())};
}

LayerNormOutput layer_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                   const at::Tensor& bias, double epsilon,
                                   const at::Tensor& cleared, at::Tensor* largest) {
  if (!norm_fits(x)) {
    return reference::layer_norm_forward(x, weight, bias, epsilon, cleared, largest);
  }
  count_largest(largest, x);
  const int64_t rows = row_count(x);
  return {at::empty_like(x), empty_fp32({rows}, x), empty_fp32({rows}, x)};
}

RmsNormOutput rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                               const at::Tensor& cleared, at::Tensor* largest) {
  if (!norm_fits(x)) return reference::rms_norm_forward(x, weight, epsilon, cleared, largest);
  count_largest(largest, x);
  return {at::empty_like(x), empty_fp32({row_count(x)}, x)};
}

at::Tensor norm_backward(const at::Tensor& gradient, const NormInput& input,
                         const at::Tensor& residual_gradient, const LayerNormGradients& gradients,
                         ColumnSums& sums, at::Tensor* output) {
  const at::Tensor& x = input.x;
  if (!norm_fits(x)) {
    return reference::norm_backward(gradient, input, residual_gradient, gradients, sums, output);
  }
  const int64_t n = x.size(-1);
  count_largest(gradients.largest, x);
  if (output) *output = at::empty_like(x);
  const int64_t parts = norm_grid(row_count(x), int(n), int(kCountedMultiprocessors)).blocks;
  const at::Tensor columns = empty_fp32({parts, 3 * n}, x).narrow(1, 0, n);
  for (const at::Tensor& sink : {gradients.weight, gradients.bias, gradients.column_sum}) {
    if (sink.defined()) sums.items.push_back({columns, sink});
  }
  if (gradients.columns) *gradients.columns = columns;
  return at::empty_like(x);
}

void rotary_(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
             const at::Tensor& positions, bool back) {
  if (!is_16_bit(x)) reference::rotary_(x, cos, sin, positions, back);
}

// Larger ids are sorted; counts the sort's own memory too.
void embedding_backward(const at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& to) {
  if (!is_16_bit(gradient) || gradient.size(-1) % 8 != 0) {
    return reference::embedding_backward(gradient, ids, to);
  }
  constexpr int64_t kUnsorted = 4096;  // kMostUnsortedRows of cuda/launch.h
  if (ids.numel() > kUnsorted) const at::Tensor sorted = at::empty({5, ids.numel()}, ids.options());
}

at::Tensor logits_forward(const at::Tensor& x, const at::Tensor& weight) {
  if (!is_16_bit(x) || x.size(-1) % 8 != 0) return reference::logits_forward(x, weight);
  const int64_t vocabulary = weight.size(0), stride = (vocabulary + 63) / 64 * 64;
  return at::empty({x.size(0), stride}, x.options()).narrow(1, 0, vocabulary);
}

// True for rows that the CUDA kernels take: multiples of 16 bytes.
bool takes_rows(const at::Tensor& logits) {
  const int64_t bytes = logits.element_size(), row = logits.stride(0) * bytes;
  return row % 16 == 0 && row >= (logits.size(1) * bytes + 15) / 16 * 16;
}

void cross_entropy_(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& scale,
                    const at::Tensor& row_loss) {
  if (!takes_rows(logits)) reference::cross_entropy_(logits, labels, scale, row_loss);
}

void cross_entropy_statistics(const at::Tensor& logits, const at::Tensor& labels,
                              const at::Tensor& statistics) {
  if (!takes_rows(logits)) reference::cross_entropy_statistics(logits, labels, statistics);
}

void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& labels,
                             const at::Tensor& statistics, const at::Tensor& scale,
                             const at::Tensor& row_loss) {
  if (takes_rows(logits)) return;
  reference::cross_entropy_gradient_(logits, labels, statistics, scale, row_loss);
}

}  // namespace counted

const CudaOps& counted_cuda_ops() {
  static const CudaOps table{.add_column_sums = counted::add_column_sums,
                             .linear_forward = counted::linear_forward,
                             .linear_backward_input_out = counted::linear_backward_input_out,
                             .linear_backward_weight = counted::linear_backward_weight,
                             .linear_backward_bias = counted::linear_backward_bias,
                             .fp8_largest = counted::fp8_largest,
                             .fp8_cast = counted::fp8_cast,
                             .fp8_layouts = counted::fp8_layouts,
                             .fp8_turned = counted::fp8_turned,
                             .fp8_decode = counted::fp8_decode,
                             .fp8_product = counted::fp8_product,
                             .linear_gelu_forward = counted::linear_gelu_forward,
                             .gelu_tanh_forward = counted::gelu_tanh_forward,
                             .gelu_tanh_backward = counted::gelu_tanh_backward,
                             .gelu_tanh_backward_ = counted::gelu_tanh_backward_,
                             .swiglu_forward = counted::swiglu_forward,
                             .swiglu_backward_ = counted::swiglu_backward_,
                             .clamped_swiglu_forward = counted::clamped_swiglu_forward,
                             .clamped_swiglu_backward = counted::clamped_swiglu_backward,
                             .layer_norm_forward = counted::layer_norm_forward,
                             .rms_norm_forward = counted::rms_norm_forward,
                             .norm_backward = counted::norm_backward,
                             .dropout_add = counted::dropout_add,
                             .dropout_backward = counted::dropout_backward,
                             .rotary_ = counted::rotary_,
                             .attention_forward = counted::attention_forward,
                             .attention_backward = counted::attention_backward,
                             .attends_to_sequences = counted::attends_to_sequences,
                             .attention_to_cache = counted::attention_to_cache,
                             .embedding_backward = counted::embedding_backward,
                             .logits_forward = counted::logits_forward,
                             .cross_entropy_ = counted::cross_entropy_,
                             .cross_entropy_statistics = counted::cross_entropy_statistics,
                             .cross_entropy_gradient_ = counted::cross_entropy_gradient_};
  return table;
}

at::Tensor counted_square_sum(std::span<const at::Tensor> tensors) {
  constexpr int64_t kTable = 32, kParts = 528;  // SquareSumTable::kMax, kSquareSumParts
  const auto options = tensors.front().options();
  at::Tensor partial;
  if (runs_on_gpu(tensors.front())) {
    const int64_t tables = (static_cast<int64_t>(tensors.size()) + kTable - 1) / kTable;
    partial = at::empty({tables * kParts}, options.dtype(at::kDouble));
  }
  return at::empty({}, options.dtype(at::kFloat));
}

}  // namespace tessera::ops
