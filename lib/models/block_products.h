// SPDX-License-Identifier: MIT
#pragma once
// A block's products by hand: several of one input as one, where their weights lie side by side.
#include <ATen/core/Tensor.h>

#include "lib/model/tensor_collectives.h"
#include "lib/models/decoder_block.h"
#include "tessera/ops/kernels.h"

namespace tessera::detail {

using Pieces = c10::SmallVector<at::Tensor, 3>;
// [Note: side by side] Parameters of one product lie one after the other in a strategy's buffer,
// mostly, and so do their gradients: then one product serves them all, and nothing is copied.
// One or several [rows, columns] -> all rows; undefined where they lie elsewhere.
at::Tensor adjacent(const Pieces& pieces);

at::Tensor weight_of(const ProductWeights& p);  // [all outputs, in]
at::Tensor bias_of(const ProductWeights& p);    // [all outputs], or undefined
at::Tensor only_bias(const ProductWeights& p);  // of one product, or undefined

// Adds the gradients of y = x W^T + b to the tensors in g, whose undefined members are not wanted.
void add_weight(const at::Tensor& dy, const at::Tensor& x, const ProductWeights& w,
                const ProductWeights& g);
// columns: dy's, where they are at hand.
void add_bias(const at::Tensor& dy, const ProductWeights& w, const ProductWeights& g,
              ops::ColumnSums& sums, const at::Tensor& columns = {});

// All tokens of what lies between the layers, for a layer cut by columns.
Pending start_enter(const at::Tensor& x, int64_t rows, const TensorAxis& axis);
// The sum over ranks of their parts of a product, back between the layers.
Pending start_leave(const at::Tensor& part, const TensorAxis& axis);

// Memory of a product [rows + spare, columns], whose spare rows the norm before it clears.
struct WithSpareRows {
  at::Tensor all, product, spare;  // undefined without spare rows
};
WithSpareRows with_spare_rows(const at::Tensor& like, int64_t rows, int64_t spare, int64_t columns);

}  // namespace tessera::detail
