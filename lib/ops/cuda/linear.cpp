// SPDX-License-Identifier: MIT
// Linear layers on 16-bit tensors. A row-major [rows, columns] tensor is a column-major [columns,
// rows] matrix.
#include "lib/ops/cuda/entries.h"
#include "lib/ops/cuda/gemm.h"
#include "lib/ops/cuda/support.h"

namespace tessera::ops::cuda {
namespace {

// True for [rows, columns] with unit stride inside rows; rows may be padded.
bool is_matrix(const at::Tensor& x) {
  return is_16_bit(x) && x.stride(-1) == 1 && is_aligned(x) && x.size(-1) > 0 &&
         (x.is_contiguous() || (x.dim() == 2 && x.stride(0) % 8 == 0));
}

int64_t leading(const at::Tensor& x) { return x.is_contiguous() ? x.size(-1) : x.stride(0); }

// True for [out, in] as the transposed view of a stored [in, out].
bool is_transposed(const at::Tensor& weight) {
  return !weight.is_contiguous() && weight.stride(-1) != 1 && weight.stride(0) == 1;
}

// Leading dimension of the weight as stored; a view would cost more host time than the rest of a
// product.
int64_t stored_leading(const at::Tensor& weight) {
  return is_transposed(weight) ? weight.stride(1) : leading(weight);
}

bool is_stored_matrix(const at::Tensor& weight) {
  if (!is_transposed(weight)) return is_matrix(weight);
  return is_16_bit(weight) && is_aligned(weight) && weight.size(0) % 8 == 0 &&
         weight.stride(1) % 8 == 0;
}

bool can_multiply(const at::Tensor& x, const at::Tensor& weight) {
  return is_matrix(x) && is_stored_matrix(weight) && x.scalar_type() == weight.scalar_type() &&
         weight.size(1) % 8 == 0;
}

// Address of x's element [row, column].
char* address(const at::Tensor& x, int64_t row, int64_t column) {
  return static_cast<char*>(x.data_ptr()) +
         (row * x.stride(0) + column * x.stride(-1)) * x.element_size();
}

Gemm forward_gemm(const at::Tensor& x, const at::Tensor& weight, void* out, int64_t ldd) {
  Gemm g;
  g.m = weight.size(0), g.n = row_count(x), g.k = weight.size(1);
  g.transpose_a = !is_transposed(weight);
  g.a = weight.data_ptr(), g.lda = stored_leading(weight);
  g.b = x.data_ptr(), g.ldb = leading(x);
  g.d = out, g.ldd = ldd;
  g.type = g.out_type = x.scalar_type();
  return g;
}

// Splits off the part of a size beyond a multiple of 8, such as GPT-2's vocabulary of 50,257:
// cuBLAS has fast kernels only for such multiples. Calls product(first, count).
template <typename Product>
void in_parts(int64_t size, const Product& product) {
  constexpr int64_t kWhole = 64, kWorthIt = 4096;
  const int64_t first = size % 8 == 0 || size < kWorthIt ? size : size / kWhole * kWhole;
  product(int64_t{0}, first);
  if (first < size) product(first, size - first);
}

at::Tensor empty_output(const at::Tensor& x, const at::Tensor& weight) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return empty(shape, x, x.scalar_type());
}

}  // namespace

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& residual, const at::Tensor& result) {
  if (!can_multiply(x, weight) || weight.size(0) % 8 != 0 ||
      !fits(x.scalar_type(), {bias, residual, result})) {
    return reference::linear_forward(x, weight, bias, residual, result);
  }
  const at::Tensor y = result.defined() ? result : empty_output(x, weight);
  Gemm g = forward_gemm(x, weight, y.data_ptr(), weight.size(0));
  if (bias.defined()) g.epilogue = Epilogue::kBias, g.bias = bias.data_ptr();
  if (residual.defined()) g.beta = 1, g.c = residual.data_ptr();
  run_gemm(g);
  return y;
}

void linear_backward_input_out(const at::Tensor& gradient, const at::Tensor& weight,
                               const at::Tensor& result) {
  if (!can_multiply(gradient, weight) || !fits(gradient.scalar_type(), {result})) {
    return reference::linear_backward_input_out(gradient, weight, result);
  }
  in_parts(weight.size(0), [&](int64_t first, int64_t count) {
    Gemm g;
    g.m = weight.size(1), g.n = row_count(gradient), g.k = count;
    g.transpose_a = is_transposed(weight);
    g.a = address(weight, first, 0), g.lda = stored_leading(weight);
    g.b = address(gradient, 0, first), g.ldb = leading(gradient);
    g.d = result.data_ptr(), g.ldd = weight.size(1);
    g.beta = first > 0 ? 1 : 0;
    g.type = g.out_type = gradient.scalar_type();
    run_gemm(g);
  });
}

void linear_backward_weight(const at::Tensor& gradient, const at::Tensor& x,
                            const at::Tensor& weight_gradient, bool add) {
  if (is_transposed(weight_gradient)) {
    return linear_backward_weight(x, gradient, weight_gradient.t(), add);
  }
  const bool out_fits = weight_gradient.is_contiguous() && is_aligned(weight_gradient) &&
                        (weight_gradient.scalar_type() == x.scalar_type() ||
                         weight_gradient.scalar_type() == at::kFloat);
  if (!out_fits || !is_matrix(x) || !is_matrix(gradient) || x.size(-1) % 8 != 0 ||
      gradient.scalar_type() != x.scalar_type()) {
    return reference::linear_backward_weight(gradient, x, weight_gradient, add);
  }
  if (row_count(x) == 0) {
    if (!add) at::Tensor(weight_gradient).zero_();
    return;
  }
  in_parts(gradient.size(-1), [&](int64_t first, int64_t count) {
    Gemm g;
    g.m = x.size(-1), g.n = count, g.k = row_count(x);
    g.transpose_b = true;
    g.a = x.data_ptr(), g.lda = leading(x);
    g.b = address(gradient, 0, first), g.ldb = leading(gradient);
    g.d = address(weight_gradient, first, 0), g.ldd = x.size(-1);
    g.beta = add ? 1 : 0;
    g.type = x.scalar_type(), g.out_type = weight_gradient.scalar_type();
    run_gemm(g);
  });
}

at::Tensor linear_gelu_forward(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, at::Tensor* pre_activation) {
  if (!can_multiply(x, weight) || weight.size(0) % 8 != 0 || !bias.defined() ||
      !fits(x.scalar_type(), {bias})) {
    return reference::linear_gelu_forward(x, weight, bias, pre_activation);
  }
  at::Tensor y = empty_output(x, weight);
  Gemm g = forward_gemm(x, weight, y.data_ptr(), weight.size(0));
  g.epilogue = pre_activation ? Epilogue::kGeluAuxBias : Epilogue::kGeluBias;
  g.bias = bias.data_ptr();
  if (pre_activation) {
    *pre_activation = empty_as(y);
    g.aux = pre_activation->data_ptr();
  }
  run_gemm(g);
  return y;
}

at::Tensor logits_forward(const at::Tensor& x, const at::Tensor& weight) {
  if (!can_multiply(x, weight)) return reference::logits_forward(x, weight);
  const int64_t vocabulary = weight.size(0), stride = (vocabulary + 63) / 64 * 64;
  const at::Tensor logits = at::empty({x.size(0), stride}, x.options());
  in_parts(vocabulary, [&](int64_t first, int64_t count) {
    Gemm g = forward_gemm(x, weight, address(logits, 0, first), stride);
    g.m = count, g.a = address(weight, first, 0);
    run_gemm(g);
  });
  return logits.narrow(1, 0, vocabulary);
}

}  // namespace tessera::ops::cuda
