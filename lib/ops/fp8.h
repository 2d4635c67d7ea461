// SPDX-License-Identifier: MIT
#pragma once
// Matrices in 8 bits with scales from their own largest magnitudes, and their products
// (docs/concepts/fp8.md).
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "tessera/ops/fp8.h"

namespace tessera::ops {

// Values are codes * scale. Products sum over the inner dimension.
struct Fp8Matrix {
  at::Tensor codes;  // [rows, inner], kFloat8_e4m3fn or kFloat8_e5m2, contiguous
  at::Tensor scale;  // fp32: [1, 1], or [rows, 1]
  bool defined() const { return codes.defined(); }
};

// x [rows, inner] with any strides, scaled so that its largest magnitude becomes the dtype's: 448
// (e4m3) or 57,344 (e5m2), as a whole or in each row. All zero: the scale is 1. Of a matrix or row
// with NaN or infinity all products are NaN.
Fp8Matrix fp8_matrix(const at::Tensor& x, at::ScalarType dtype, Fp8 scaling);
// Its two passes: the largest magnitudes, fp32 [1, 1] or [rows, 1]; codes and scales for them.
// Between the two, ranks that share a matrix, or rows, take the largest of all.
at::Tensor fp8_largest(const at::Tensor& x, Fp8 scaling);
Fp8Matrix fp8_cast(const at::Tensor& x, const at::Tensor& largest, at::ScalarType dtype);
// Whether a GPU's kernels cast these matrices; others are cast by LibTorch.
bool fp8_cast_fits(const at::Tensor& x);

// Two layouts of one matrix [rows, inner] with one scale: its own, and its transpose [inner, rows],
// whose rows are filled with zeros to a multiple of 16, as products need it.
struct Fp8Layouts {
  Fp8Matrix rows, columns;
};
struct WantedLayouts {
  bool rows = true, columns = true;
};
// In one pass over x; largest: fp8_largest(x, kTensorwise). Layouts that are not wanted are
// undefined.
Fp8Layouts fp8_layouts(const at::Tensor& x, const at::Tensor& largest, at::ScalarType dtype,
                       WantedLayouts wanted = {});
// Whether a GPU's kernel makes them; others are made by casts and copies.
bool fp8_layouts_fit(const at::Tensor& x);

// Terms of a product; undefined: none.
struct Fp8Terms {
  at::Tensor bias;      // [n]
  at::Tensor residual;  // [m, n]
  at::Tensor result;    // [m, n] with any strides: receives the product
  bool add = false;     // result is a term, too
};
// left [m, inner] times right [n, inner] transposed, plus terms -> [m, n] in this dtype, or
// terms.result in its own. Sums are fp32, scaled, and rounded once with their terms.
at::Tensor fp8_product(const Fp8Matrix& left, const Fp8Matrix& right, at::ScalarType dtype,
                       const Fp8Terms& terms = {});
// Whether GPUs with 8-bit products multiply these; others are multiplied as on the CPU.
bool fp8_product_fits(const Fp8Matrix& left, const Fp8Matrix& right, at::ScalarType dtype);

// The transpose [inner, rows] of a matrix with one scale, whose rows are filled with zeros to a
// multiple of 16, as products need it. Codes only move.
Fp8Matrix fp8_turned(const Fp8Matrix& x);

// Weights that a strategy stores as codes, by key. The codes have the weight's shape; those of the
// weights of one product have the same scale.
using Fp8Codes = std::map<const void*, Fp8Matrix>;

// 8-bit copies of weights, valid for as long as the weights are: a strategy keeps them for the
// micro-batches of a step.
class Fp8Weights {
 public:
  // stored: weights that are codes already; null: none. keeps: copies of others are kept.
  explicit Fp8Weights(std::shared_ptr<const Fp8Codes> stored = nullptr, bool keeps = true)
      : stored_(std::move(stored)), keeps_(keeps) {}

  bool keeps() const { return keeps_; }
  bool has_stored() const { return stored_ != nullptr && !stored_->empty(); }
  // The weight's own codes; null: it is none of them.
  const Fp8Matrix* stored(const void* key) const;
  // The copy for this key, made at its first use. transposed: the one for gradients of inputs.
  const Fp8Matrix& copy_of(const void* key, bool transposed,
                           const std::function<Fp8Matrix()>& make);

 private:
  std::shared_ptr<const Fp8Codes> stored_;
  bool keeps_;
  std::map<std::pair<const void*, bool>, Fp8Matrix> copies_;
};

}  // namespace tessera::ops
