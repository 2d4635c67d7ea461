// SPDX-License-Identifier: MIT
#pragma once
// Products of a block without autograd; those with one input run as one if their weights are
// adjacent.
#include <ATen/core/Tensor.h>

#include "lib/model/tensor_collectives.h"
#include "lib/models/block_adapters.h"
#include "lib/models/decoder_block.h"
#include "tessera/ops/kernels.h"

namespace tessera::detail {

using Pieces = c10::SmallVector<at::Tensor, 3>;
// [Note: side by side]
// Parameters of one product are mostly adjacent in a strategy's buffer, and so are their gradients.
// Then one product serves them all without copies. Returns [rows, columns] tensors as one with all
// rows; undefined if they are not adjacent.
at::Tensor adjacent(const Pieces& pieces);
at::Tensor joined(const Pieces& pieces);  // adjacent(), or a copy

at::Tensor weight_of(const ProductWeights& p);  // [all outputs, in]
at::Tensor bias_of(const ProductWeights& p);    // [all outputs], or undefined
at::Tensor only_bias(const ProductWeights& p);  // the bias if there is one product, else undefined

// A block's product of which the options say whether it is in 8 bits.
struct ProductKind {
  BlockProduct product;
  const DecoderBlockOptions& options;
};
// As ops::linear_forward(), ops::linear_backward_input_out() and ops::linear_backward_input().
at::Tensor forward_product(ProductKind kind, const at::Tensor& x, const ProductWeights& w,
                           const at::Tensor& bias, const at::Tensor& residual = {},
                           const at::Tensor& result = {});
void backward_input_out(ProductKind kind, const at::Tensor& dy, const ProductWeights& w,
                        const at::Tensor& result);
at::Tensor backward_input(ProductKind kind, const at::Tensor& dy, const ProductWeights& w);

// Whether add_weight() has its x from forward_product() in 8 bits, and needs no other.
bool has_input(ProductKind kind);

// Adds the gradients of y = x W^T + b to the tensors in g; undefined members are skipped.
void add_weight(const at::Tensor& dy, const at::Tensor& x, const ProductWeights& w,
                const ProductWeights& g);
void add_weight(ProductKind kind, const at::Tensor& dy, const at::Tensor& x,
                const ProductWeights& w, const ProductWeights& g);
// columns: column sums of dy, if known.
void add_bias(const at::Tensor& dy, const ProductWeights& w, const ProductWeights& g,
              ops::ColumnSums& sums, const at::Tensor& columns = {});

// Row-parallel product with its bias, plus residual, after dropout of the product; lowered receives
// ProductAdapters::lower()'s result. Between layers.
at::Tensor row_parallel(const at::Tensor& x, const ProductWeights& w, const at::Tensor& residual,
                        const ops::Dropout& dropout, ProductKind kind,
                        const ProductAdapters& adapters, at::Tensor& lowered);

// Starts an all-gather of all tokens, for a column-parallel layer (sequence parallelism).
Pending start_enter(const at::Tensor& x, int64_t rows, const TensorAxis& axis);
// Starts the sum over ranks of a row-parallel product's parts.
Pending start_leave(const at::Tensor& part, const TensorAxis& axis);

// Memory of a product [rows + spare, columns]; the norm before it clears the spare rows.
struct WithSpareRows {
  at::Tensor all, product, spare;  // undefined without spare rows
};
WithSpareRows with_spare_rows(const at::Tensor& like, int64_t rows, int64_t spare, int64_t columns);

}  // namespace tessera::detail
