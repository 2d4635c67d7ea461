// SPDX-License-Identifier: MIT
// Norms, GELU, SwiGLU, dropout, column sums and the cross-entropy: checks around the kernels.
#include "lib/ops/cuda/entries.h"
#include "lib/ops/cuda/support.h"
#include "lib/ops/norm_groups.h"
#include "lib/ops/random.h"

namespace tessera::ops::cuda {
namespace {

at::Tensor empty_fp32(at::IntArrayRef shape, const at::Tensor& like) {
  return empty(shape, like, at::kFloat);
}

// Columns [first, first + n) of a contiguous matrix.
at::Tensor columns_of(const at::Tensor& x, int64_t first, int64_t n) {
  return x.as_strided({x.size(0), n}, {x.size(1), 1}, x.storage_offset() + first);
}

float* floats(const at::Tensor& x) { return static_cast<float*>(x.data_ptr()); }

bool norm_fits(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return fits(x.scalar_type(), {x, weight, bias}) && x.size(-1) % 8 == 0 &&
         x.size(-1) <= kMaxNormColumns && x.numel() > 0;
}

// Memory that the next kernel clears on the side; memory of unsuitable layout is cleared at once.
Cleared cleared_beside(const at::Tensor& memory) {
  constexpr int64_t kPiece = 16;
  if (!memory.defined()) return {};
  const auto bytes = int64_t(memory.nbytes());
  if (memory.is_contiguous() && is_aligned(memory) && bytes % kPiece == 0) {
    return {memory.data_ptr(), bytes / kPiece};
  }
  memory.zero_();
  return {};
}

}  // namespace

void add_column_sums(ColumnSums& sums) {
  const at::ScalarType type = sums.items.front().gradient.scalar_type();
  bool simple = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
  for (const auto& [partial, gradient] : sums.items) {
    simple = simple && gradient.is_contiguous() && gradient.scalar_type() == type &&
             partial.scalar_type() == at::kFloat && partial.stride(1) == 1;
  }
  if (!simple) return reference::add_column_sums(sums);
  for (size_t first = 0; first < sums.items.size(); first += ColumnItems::kMax) {
    ColumnItems items;
    for (size_t i = first; i < std::min(sums.items.size(), first + ColumnItems::kMax); ++i) {
      const auto& [partial, gradient] = sums.items[i];
      items.items[items.count++] = {floats(partial), partial.stride(0), int(partial.size(0)),
                                    int(partial.size(1)), gradient.data_ptr()};
    }
    add_column_sums(type_of(sums.items.front().gradient), items, stream());
    check_launch("add_column_sums");
  }
  sums.items.clear();
}

void linear_backward_bias(const at::Tensor& gradient, const at::Tensor& bias_gradient,
                          ColumnSums& sums) {
  if (!fits(gradient.scalar_type(), {gradient}) || gradient.size(-1) % 64 != 0) {
    return reference::linear_backward_bias(gradient, bias_gradient, sums);
  }
  const int n = int(gradient.size(-1));
  const at::Tensor partial = empty_fp32({kColumnParts, n}, gradient);
  column_sums(type_of(gradient), gradient.data_ptr(), floats(partial), row_count(gradient), n,
              stream());
  check_launch("column_sums");
  sums.items.push_back({partial, bias_gradient});
}

at::Tensor gelu_tanh_forward(const at::Tensor& x, at::Tensor* largest) {
  if (!fits(x.scalar_type(), {x}) || x.numel() % 8 != 0 || x.numel() == 0) {
    return reference::gelu_tanh_forward(x, largest);
  }
  at::Tensor y = empty_as(x);
  gelu_forward(type_of(x), x.data_ptr(), y.data_ptr(), x.numel(), zeroed(largest, x), stream());
  check_launch("gelu_forward");
  return y;
}

at::Tensor gelu_tanh_backward(const at::Tensor& gradient, const at::Tensor& x) {
  if (!fits(x.scalar_type(), {gradient, x}) || x.numel() % 8 != 0 || x.numel() == 0) {
    return reference::gelu_tanh_backward(gradient, x);
  }
  at::Tensor dx = empty_as(x);
  gelu_backward(type_of(x), gradient.data_ptr(), x.data_ptr(), dx.data_ptr(), x.numel(), stream());
  check_launch("gelu_backward");
  return dx;
}

void gelu_tanh_backward_(const at::Tensor& gradient, const at::Tensor& pre_activation,
                         const at::Tensor& bias_gradient, ColumnSums& sums, at::Tensor* output,
                         at::Tensor* largest) {
  const int n = int(gradient.size(-1));
  if (!fits(gradient.scalar_type(), {gradient, pre_activation}) || n % 64 != 0) {
    return reference::gelu_tanh_backward_(gradient, pre_activation, bias_gradient, sums, output,
                                          largest);
  }
  if (output) *output = empty_as(pre_activation);
  const at::Tensor partial = empty_fp32({kGeluParts, n}, gradient);
  gelu_backward_columns(type_of(gradient), gradient.data_ptr(), pre_activation.data_ptr(),
                        output ? output->data_ptr() : nullptr, floats(partial),
                        zeroed(largest, gradient), row_count(gradient), n, stream());
  check_launch("gelu_backward_columns");
  if (bias_gradient.defined()) sums.items.push_back({partial, bias_gradient});
}

LayerNormOutput layer_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                   const at::Tensor& bias, double epsilon,
                                   const at::Tensor& cleared, at::Tensor* largest) {
  if (!norm_fits(x, weight, bias)) {
    return reference::layer_norm_forward(x, weight, bias, epsilon, cleared, largest);
  }
  const int64_t rows = row_count(x);
  LayerNormOutput result{empty_as(x), empty_fp32({rows}, x), empty_fp32({rows}, x)};
  norm_forward(type_of(x),
               {.x = x.data_ptr(),
                .weight = weight.data_ptr(),
                .bias = bias.data_ptr(),
                .output = result.output.data_ptr(),
                .mean = floats(result.mean),
                .rstd = floats(result.rstd),
                .rows = rows,
                .n = int(x.size(-1)),
                .epsilon = float(epsilon),
                .cleared = cleared_beside(cleared),
                .largest = zeroed(largest, x)},
               stream());
  check_launch("layer_norm_forward");
  return result;
}

RmsNormOutput rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                               const at::Tensor& cleared, at::Tensor* largest) {
  if (!norm_fits(x, weight, {})) {
    return reference::rms_norm_forward(x, weight, epsilon, cleared, largest);
  }
  const int64_t rows = row_count(x);
  RmsNormOutput result{empty_as(x), empty_fp32({rows}, x)};
  norm_forward(type_of(x),
               {.x = x.data_ptr(),
                .weight = weight.data_ptr(),
                .bias = nullptr,
                .output = result.output.data_ptr(),
                .mean = nullptr,
                .rstd = floats(result.rstd),
                .rows = rows,
                .n = int(x.size(-1)),
                .epsilon = float(epsilon),
                .cleared = cleared_beside(cleared),
                .largest = zeroed(largest, x)},
               stream());
  check_launch("rms_norm_forward");
  return result;
}

at::Tensor norm_backward(const at::Tensor& gradient, const NormInput& input,
                         const at::Tensor& residual_gradient, const LayerNormGradients& gradients,
                         ColumnSums& sums, at::Tensor* output) {
  const auto& [x, mean, rstd, weight, bias] = input;
  if (!norm_fits(x, weight, bias) || !fits(x.scalar_type(), {gradient, residual_gradient})) {
    return reference::norm_backward(gradient, input, residual_gradient, gradients, sums, output);
  }
  const int64_t rows = row_count(x), n = x.size(-1);
  at::Tensor dx = empty_as(x);
  if (output) *output = empty_as(x);
  const at::Tensor partial = empty_fp32({norm_parts(rows, int(n)), 3 * n}, x);
  norm_backward(type_of(x),
                {.gradient = gradient.data_ptr(),
                 .x = x.data_ptr(),
                 .weight = weight.data_ptr(),
                 .bias = data_or_null(bias),
                 .residual = data_or_null(residual_gradient),
                 .mean = mean.defined() ? floats(mean) : nullptr,
                 .rstd = floats(rstd),
                 .dx = dx.data_ptr(),
                 .output = output ? output->data_ptr() : nullptr,
                 .partial = floats(partial),
                 .columns = gradients.column_sum.defined() || gradients.columns,
                 .rows = rows,
                 .n = int(n),
                 .cleared = cleared_beside(gradients.cleared),
                 .largest = zeroed(gradients.largest, x)},
                stream());
  check_launch("norm_backward");
  const auto add = [&](int part, const at::Tensor& to) {
    if (to.defined()) sums.items.push_back({columns_of(partial, part * n, n), to});
  };
  add(0, gradients.weight);
  if (bias.defined()) add(1, gradients.bias);
  add(2, gradients.column_sum);
  if (gradients.columns) *gradients.columns = columns_of(partial, 2 * n, n);
  return dx;
}

namespace {
// A host seed would repeat in every replay of a captured graph, so capture needs a seed in device
// memory.
DropoutDraw draw_of(const Dropout& dropout) {
  check(dropout.seed_at.defined() || !is_captured(stream()), ErrorCode::kUnavailable,
        "dropout is recorded, but its seed is not in memory");
  return {.seed = dropout.seed,
          .first = dropout.first,
          .threshold = drop_threshold(dropout),
          .factor = float(1.0 / (1.0 - dropout.probability)),
          .seed_at = static_cast<const int64_t*>(data_or_null(dropout.seed_at))};
}
}  // namespace

at::Tensor dropout_add(const at::Tensor& x, const at::Tensor& residual, const Dropout& dropout) {
  const bool same = !residual.defined() ||
                    (residual.scalar_type() == x.scalar_type() && residual.is_contiguous());
  if (x.scalar_type() == at::kDouble || !x.is_contiguous() || !same) {
    return reference::dropout_add(x, residual, dropout);
  }
  if (x.numel() == 0) return empty_as(x);
  at::Tensor y = empty_as(x);
  dropout_add(type_of(x), x.data_ptr(), data_or_null(residual), y.data_ptr(), x.numel(),
              draw_of(dropout), stream());
  check_launch("dropout_add");
  return y;
}

at::Tensor dropout_backward(const at::Tensor& gradient, const Dropout& dropout,
                            const at::Tensor& bias_gradient, ColumnSums& sums) {
  const int n = int(gradient.size(-1));
  if (!bias_gradient.defined() || !fits(gradient.scalar_type(), {gradient}) || n % 64 != 0 ||
      dropout.first % 8 != 0) {
    return reference::dropout_backward(gradient, dropout, bias_gradient, sums);
  }
  at::Tensor result = empty_as(gradient);
  const at::Tensor partial = empty_fp32({kColumnParts, n}, gradient);
  dropout_columns(type_of(gradient), gradient.data_ptr(), result.data_ptr(), floats(partial),
                  row_count(gradient), n, draw_of(dropout), stream());
  check_launch("dropout_columns");
  sums.items.push_back({partial, bias_gradient});
  return result;
}

at::Tensor swiglu_forward(const at::Tensor& gate_up, at::Tensor* largest) {
  const int64_t n = gate_up.size(-1) / 2;
  if (!fits(gate_up.scalar_type(), {gate_up}) || n % 8 != 0 || gate_up.numel() == 0) {
    return reference::swiglu_forward(gate_up, largest);
  }
  std::vector<int64_t> shape = gate_up.sizes().vec();
  shape.back() = n;
  const at::Tensor output = empty(shape, gate_up, gate_up.scalar_type());
  swiglu_forward(type_of(gate_up), gate_up.data_ptr(), output.data_ptr(), row_count(gate_up),
                 int(n), zeroed(largest, gate_up), stream());
  check_launch("swiglu_forward");
  return output;
}

at::Tensor swiglu_backward_(const at::Tensor& gradient, const at::Tensor& gate_up,
                            at::Tensor* output, at::Tensor* largest) {
  const int64_t n = gradient.size(-1);
  if (!fits(gradient.scalar_type(), {gradient, gate_up}) || n % 8 != 0 || gradient.numel() == 0) {
    return reference::swiglu_backward_(gradient, gate_up, output, largest);
  }
  at::Tensor result = empty_as(gate_up);
  if (output) *output = gradient;
  swiglu_backward(type_of(gradient), gradient.data_ptr(), gate_up.data_ptr(), result.data_ptr(),
                  output ? output->data_ptr() : nullptr, row_count(gradient), int(n),
                  zeroed(largest, gradient), stream());
  check_launch("swiglu_backward");
  return result;
}

at::Tensor clamped_swiglu_forward(const at::Tensor& gate_up) {
  const int64_t n = gate_up.size(-1) / 2;
  if (!fits(gate_up.scalar_type(), {gate_up}) || n % 8 != 0 || gate_up.numel() == 0) {
    return reference::clamped_swiglu_forward(gate_up);
  }
  std::vector<int64_t> shape = gate_up.sizes().vec();
  shape.back() = n;
  const at::Tensor output = empty(shape, gate_up, gate_up.scalar_type());
  clamped_swiglu(type_of(gate_up), gate_up.data_ptr(), output.data_ptr(), output.numel() / 8,
                 stream());
  check_launch("clamped_swiglu");
  return output;
}

at::Tensor clamped_swiglu_backward(const at::Tensor& gradient, const at::Tensor& gate_up) {
  if (!fits(gradient.scalar_type(), {gradient, gate_up}) || gradient.size(-1) % 8 != 0 ||
      gradient.numel() == 0) {
    return reference::clamped_swiglu_backward(gradient, gate_up);
  }
  at::Tensor result = empty_as(gate_up);
  clamped_swiglu_backward(type_of(gradient), gradient.data_ptr(), gate_up.data_ptr(),
                          result.data_ptr(), gradient.numel() / 8, stream());
  check_launch("clamped_swiglu_backward");
  return result;
}

namespace {
// True for inputs of the kernels: rows of 16-byte multiples, int64 labels.
bool takes_rows(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& scale) {
  const int64_t bytes = logits.element_size();
  const int64_t padded = (logits.size(1) * bytes + 15) / 16 * 16;
  return (is_16_bit(logits) || logits.scalar_type() == at::kFloat) && logits.size(0) > 0 &&
         logits.stride(1) == 1 && is_aligned(logits) && logits.stride(0) * bytes % 16 == 0 &&
         logits.stride(0) * bytes >= padded && labels.scalar_type() == at::kLong &&
         labels.is_contiguous() && (!scale.defined() || scale.scalar_type() == at::kFloat);
}

LogitRows rows_of(const at::Tensor& logits, const at::Tensor& labels) {
  return {.logits = logits.data_ptr(),
          .stride = logits.stride(0),
          .labels = labels.const_data_ptr<int64_t>(),
          .rows = logits.size(0),
          .vocabulary = int(logits.size(1))};
}

}  // namespace

void cross_entropy_(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& scale,
                    const at::Tensor& row_loss) {
  if (!takes_rows(logits, labels, scale)) {
    return reference::cross_entropy_(logits, labels, scale, row_loss);
  }
  cross_entropy(type_of(logits), rows_of(logits, labels),
                static_cast<const float*>(data_or_null(scale)), floats(row_loss), stream());
  check_launch("cross_entropy");
}

void cross_entropy_statistics(const at::Tensor& logits, const at::Tensor& labels,
                              const at::Tensor& statistics) {
  if (!takes_rows(logits, labels, {}) || !statistics.is_contiguous()) {
    return reference::cross_entropy_statistics(logits, labels, statistics);
  }
  cross_entropy_statistics(type_of(logits), rows_of(logits, labels), floats(statistics), stream());
  check_launch("cross_entropy_statistics");
}

void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& labels,
                             const at::Tensor& statistics, const at::Tensor& scale,
                             const at::Tensor& row_loss) {
  if (!takes_rows(logits, labels, scale) || !statistics.is_contiguous()) {
    return reference::cross_entropy_gradient_(logits, labels, statistics, scale, row_loss);
  }
  cross_entropy_gradient(type_of(logits), rows_of(logits, labels), floats(statistics),
                         int(statistics.size(0)), static_cast<const float*>(data_or_null(scale)),
                         floats(row_loss), stream());
  check_launch("cross_entropy_gradient");
}

void embedding_backward(const at::Tensor& gradient, const at::Tensor& ids,
                        const at::Tensor& weight_gradient) {
  if (!fits(gradient.scalar_type(), {gradient, weight_gradient}) || gradient.size(-1) % 8 != 0 ||
      gradient.numel() == 0) {
    return reference::embedding_backward(gradient, ids, weight_gradient);
  }
  const at::Tensor flat = ids.reshape(-1);
  if (flat.numel() <= kMostUnsortedRows) {
    const at::Tensor dense = flat.contiguous();
    embedding_backward_unsorted(type_of(gradient), gradient.data_ptr(), dense.data_ptr<int64_t>(),
                                weight_gradient.data_ptr(), int(dense.numel()),
                                int(gradient.size(-1)), stream());
    return check_launch("embedding_backward");
  }
  const auto [sorted, order] = at::sort(flat);
  embedding_backward(type_of(gradient), gradient.data_ptr(), sorted.data_ptr<int64_t>(),
                     order.data_ptr<int64_t>(), weight_gradient.data_ptr(), sorted.numel(),
                     int(gradient.size(-1)), stream());
  check_launch("embedding_backward");
}

}  // namespace tessera::ops::cuda
