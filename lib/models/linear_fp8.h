// SPDX-License-Identifier: MIT
#pragma once
// Products of a decoder block's linear layers in 8 bits (docs/concepts/fp8.md).
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <utility>

#include "lib/models/block_adapters.h"
#include "lib/models/decoder_block.h"
#include "lib/ops/fp8.h"

namespace tessera {

// State of a block's pass with one scale a matrix, from forward to backward. By product and
// operand.
struct Fp8Pass {
  std::map<std::pair<int, int>, at::Tensor> magnitudes;
  // Transposes in 8 bits that weight gradients will take.
  std::map<std::pair<int, int>, ops::Fp8Matrix> columns;
  // Whether columns are made beside rows, in one pass: of inputs, of output gradients.
  bool keeps_inputs = false, keeps_gradients = false;
};

}  // namespace tessera

namespace tessera::detail {

// Whether the product is in 8 bits.
bool is_in_fp8(const DecoderBlockOptions& options, BlockProduct product);

// Where the kernel that forms the product's input, or its output's gradient, leaves its largest
// magnitude, so that the cast need not read the matrix twice. Null: nothing takes it from there, as
// the product is not in 8 bits with one scale a matrix, the magnitude is known, or ranks would have
// to agree on it.
at::Tensor* input_largest(const DecoderBlockOptions& options, BlockProduct product);
at::Tensor* gradient_largest(const DecoderBlockOptions& options, BlockProduct product);

// Products of y = x W^T and its gradients, without autograd; W [out, in] of one or several weights.
// x and what has its rows are [..., columns]. On a tensor axis results are this rank's parts, and
// the ranks agree on scales of matrices, and of rows, that they share; all call the same functions
// in the same order.
class LinearFp8 {
 public:
  LinearFp8(const DecoderBlockOptions& options, BlockProduct product)
      : scaling_(options.fp8),
        copies_(options.fp8_weights),
        pass_(options.fp8_pass),
        product_(product),
        axis_(options.axis),
        cuts_inputs_(product == BlockProduct::kDense || product == BlockProduct::kDown) {}

  // x W^T plus terms, of which result may have more rows.
  at::Tensor forward(const at::Tensor& x, const ProductWeights& w,
                     const ops::Fp8Terms& terms = {}) const;
  // dy W, into result if defined.
  at::Tensor backward_input(const at::Tensor& dy, const ProductWeights& w,
                            const at::Tensor& result = {}) const;
  // Whether forward() left what backward_weight() needs of x.
  bool has_input() const;
  at::Tensor* input_largest() const { return unknown_largest(Operand::kInput); }
  at::Tensor* gradient_largest() const { return unknown_largest(Operand::kGradient); }
  // dy^T x [out, in] in this dtype, or as the terms say. x may be undefined if has_input().
  at::Tensor backward_weight(const at::Tensor& dy, const at::Tensor& x, at::ScalarType dtype,
                             const ops::Fp8Terms& terms = {}) const;

 private:
  // Dimension of a matrix of which each rank of the tensor axis has a part.
  enum class Cut { kNone, kRows, kInner };
  enum class Operand : int { kWeight, kInput, kGradient };
  static at::ScalarType format_of(Operand operand);
  at::Tensor largest(const at::Tensor& x, Operand operand, Cut cut) const;
  at::Tensor* unknown_largest(Operand operand) const;
  ops::Fp8Matrix matrix(const at::Tensor& x, Operand operand, Cut cut) const;
  // Rows of x, and its columns into the pass's state if `keeps`.
  ops::Fp8Matrix rows_of(const at::Tensor& x, Operand operand, Cut cut, bool keeps) const;
  ops::Fp8Matrix columns_of(const at::Tensor& x, Operand operand, Cut cut) const;
  std::pair<int, int> key(Operand operand) const {
    return {static_cast<int>(product_), static_cast<int>(operand)};
  }
  ops::Fp8Matrix weight(const ProductWeights& w, bool transposed) const;
  ops::Fp8Matrix stored_weight(const ProductWeights& w, bool transposed) const;
  bool has_layouts(const at::Tensor& weight) const;
  ops::Fp8Matrix made_weight(const ProductWeights& w, bool transposed) const;

  Fp8 scaling_;
  std::shared_ptr<ops::Fp8Weights> copies_;
  std::shared_ptr<Fp8Pass> pass_;
  BlockProduct product_;
  TensorAxis axis_;
  bool cuts_inputs_;
};

// The same with autograd: x W^T + biases; biases undefined: none.
at::Tensor linear_fp8(const at::Tensor& x, const ProductWeights& w, const at::Tensor& bias,
                      const LinearFp8& products);

}  // namespace tessera::detail
