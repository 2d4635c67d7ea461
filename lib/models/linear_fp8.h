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

// Largest magnitudes of a pass's matrices, kept from a matrix's first cast to its second, which is
// turned: an input's and a weight's from forward to backward. By product and operand.
struct Fp8Magnitudes {
  std::map<std::pair<int, int>, at::Tensor> of;
};

}  // namespace tessera

namespace tessera::detail {

// Products of y = x W^T and its gradients, without autograd; W [out, in] of one or several weights.
// x and what has its rows are [..., columns]. On a tensor axis results are this rank's parts, and
// the ranks agree on scales of matrices, and of rows, that they share; all call the same functions
// in the same order.
class LinearFp8 {
 public:
  LinearFp8(const DecoderBlockOptions& options, BlockProduct product)
      : scaling_(options.fp8),
        copies_(options.fp8_weights),
        magnitudes_(options.fp8_magnitudes),
        product_(product),
        axis_(options.axis),
        cuts_inputs_(product == BlockProduct::kDense || product == BlockProduct::kDown) {}

  // x W^T plus terms, of which result may have more rows.
  at::Tensor forward(const at::Tensor& x, const ProductWeights& w,
                     const ops::Fp8Terms& terms = {}) const;
  // dy W, into result if defined.
  at::Tensor backward_input(const at::Tensor& dy, const ProductWeights& w,
                            const at::Tensor& result = {}) const;
  // dy^T x [out, in] in this dtype, or as the terms say.
  at::Tensor backward_weight(const at::Tensor& dy, const at::Tensor& x, at::ScalarType dtype,
                             const ops::Fp8Terms& terms = {}) const;

 private:
  // Dimension of a matrix of which each rank of the tensor axis has a part.
  enum class Cut { kNone, kRows, kInner };
  enum class Operand : int { kWeight, kInput, kGradient };
  ops::Fp8Matrix matrix(const at::Tensor& x, Operand operand, Cut cut) const;
  ops::Fp8Matrix weight(const ProductWeights& w, bool transposed) const;
  ops::Fp8Matrix made_weight(const ProductWeights& w, bool transposed) const;

  Fp8 scaling_;
  std::shared_ptr<ops::Fp8Weights> copies_;
  std::shared_ptr<Fp8Magnitudes> magnitudes_;
  BlockProduct product_;
  TensorAxis axis_;
  bool cuts_inputs_;
};

// The same with autograd: x W^T + biases; biases undefined: none.
at::Tensor linear_fp8(const at::Tensor& x, const ProductWeights& w, const at::Tensor& bias,
                      const LinearFp8& products);

}  // namespace tessera::detail
