// SPDX-License-Identifier: MIT
#include "lib/models/block_products.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "lib/model/tensor_collectives.h"
#include "lib/models/linear_fp8.h"
#include "tessera/core/lazy_zero.h"

namespace tessera::detail {

at::Tensor adjacent(const Pieces& pieces) {
  const at::Tensor& first = pieces.front();
  if (pieces.size() == 1 || !first.defined()) return first;
  int64_t next = first.storage_offset(), rows = 0;
  for (const at::Tensor& piece : pieces) {
    if (!piece.defined() || !piece.is_contiguous() || !piece.is_alias_of(first) ||
        piece.storage_offset() != next) {
      return {};
    }
    next += piece.numel(), rows += piece.size(0);
  }
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes[0] = rows;
  return first.detach().as_strided(sizes, first.strides());
}

at::Tensor joined(const Pieces& pieces) {
  const at::Tensor whole = adjacent(pieces);
  return whole.defined() ? whole : at::cat(at::TensorList(pieces));
}

namespace {

// x.t() in one dispatch instead of three.
at::Tensor turned(const at::Tensor& x) {
  return x.as_strided({x.size(1), x.size(0)}, {x.stride(1), x.stride(0)});
}

void add_to(const at::Tensor& gradient, const at::Tensor& part) {
  if (consume_lazy_zero(gradient)) {
    gradient.copy_(part);
  } else {
    gradient.add_(part);
  }
}

void add_weight_fp8(ProductKind kind, const at::Tensor& dy, const at::Tensor& x,
                    const ProductWeights& w, const ProductWeights& g) {
  const auto wanted = std::ranges::find_if(g.weights, &at::Tensor::defined);
  if (wanted == g.weights.end()) return;
  const LinearFp8 products(kind.options, kind.product);
  if (const at::Tensor whole = adjacent(g.weights); whole.defined()) {
    const bool add = !consume_lazy_zero(whole);
    products.backward_weight(dy, x, whole.scalar_type(),
                             {.result = g.in_out ? turned(whole) : whole, .add = add});
    return;
  }
  const at::Tensor all = products.backward_weight(dy, x, wanted->scalar_type());
  int64_t row = 0;
  for (size_t i = 0; i < w.weights.size(); ++i) {
    if (g.weights[i].defined()) add_to(g.weights[i], all.narrow(0, row, w.outputs(i)));
    row += w.outputs(i);
  }
}

}  // namespace

at::Tensor weight_of(const ProductWeights& p) {
  const at::Tensor weight = joined(p.weights);
  return p.in_out ? turned(weight) : weight;
}

at::Tensor bias_of(const ProductWeights& p) {
  return p.biases.empty() ? at::Tensor() : joined(p.biases);
}

at::Tensor forward_product(ProductKind kind, const at::Tensor& x, const ProductWeights& w,
                           const at::Tensor& bias, const at::Tensor& residual,
                           const at::Tensor& result) {
  if (!is_in_fp8(kind.options, kind.product)) {
    return ops::linear_forward(x, weight_of(w), bias, residual, result);
  }
  return LinearFp8(kind.options, kind.product)
      .forward(x, w, {.bias = bias, .residual = residual, .result = result});
}

void backward_input_out(ProductKind kind, const at::Tensor& dy, const ProductWeights& w,
                        const at::Tensor& result) {
  if (!is_in_fp8(kind.options, kind.product)) {
    return ops::linear_backward_input_out(dy, weight_of(w), result);
  }
  LinearFp8(kind.options, kind.product).backward_input(dy, w, result);
}

at::Tensor backward_input(ProductKind kind, const at::Tensor& dy, const ProductWeights& w) {
  if (!is_in_fp8(kind.options, kind.product)) return ops::linear_backward_input(dy, weight_of(w));
  return LinearFp8(kind.options, kind.product).backward_input(dy, w);
}

bool has_input(ProductKind kind) {
  return is_in_fp8(kind.options, kind.product) && LinearFp8(kind.options, kind.product).has_input();
}

void add_weight(ProductKind kind, const at::Tensor& dy, const at::Tensor& x,
                const ProductWeights& w, const ProductWeights& g) {
  if (is_in_fp8(kind.options, kind.product)) return add_weight_fp8(kind, dy, x, w, g);
  add_weight(dy, x, w, g);
}

void add_weight(const at::Tensor& dy, const at::Tensor& x, const ProductWeights& w,
                const ProductWeights& g) {
  const at::Tensor whole = adjacent(g.weights);
  if (whole.defined()) return ops::linear_backward_weight(dy, x, g.in_out ? turned(whole) : whole);
  const at::Tensor rows = dy.flatten(0, -2);
  int64_t column = 0;
  for (size_t i = 0; i < w.weights.size(); ++i) {
    const int64_t n = w.outputs(i);
    if (g.weights[i].defined()) {
      ops::linear_backward_weight(rows.narrow(1, column, n), x, g.weights[i]);
    }
    column += n;
  }
}

void add_bias(const at::Tensor& dy, const ProductWeights& w, const ProductWeights& g,
              ops::ColumnSums& sums, const at::Tensor& columns) {
  const auto any = std::ranges::find_if(g.biases, &at::Tensor::defined);
  if (any == g.biases.end()) return;
  if (columns.defined() && g.biases.size() == 1) return sums.items.push_back({columns, *any});
  ops::linear_backward_bias(dy, *any, sums);
  if (g.biases.size() == 1) return;
  const at::Tensor partial = sums.items.back().partial;
  sums.items.pop_back();
  int64_t column = 0;
  for (size_t i = 0; i < w.biases.size(); ++i) {
    const int64_t n = w.biases[i].numel();
    if (g.biases[i].defined()) sums.items.push_back({partial.narrow(1, column, n), g.biases[i]});
    column += n;
  }
}

at::Tensor only_bias(const ProductWeights& p) {
  return p.biases.empty() ? at::Tensor() : p.biases[0];
}

at::Tensor row_parallel(const at::Tensor& x, const ProductWeights& w, const at::Tensor& residual,
                        const ops::Dropout& dropout, ProductKind kind,
                        const ProductAdapters& adapters, at::Tensor& lowered) {
  lowered = adapters.lower(x);
  const TensorAxis& axis = kind.options.axis;
  const at::Tensor bias = only_bias(w);
  if (axis.size() == 1 && !dropout.on()) {
    const at::Tensor sum = forward_product(kind, x, w, bias, residual);
    adapters.add_lifted(sum, lowered);
    return sum;
  }
  // Rank 0's part includes the bias, and the residual where all ranks have it, for the sum.
  const bool carries = axis.rank() == 0, adds = !dropout.on() && !axis.sequence_parallel();
  const at::Tensor part = forward_product(kind, x, w, carries ? bias : at::Tensor(),
                                          carries && adds ? residual : at::Tensor());
  adapters.add_lifted(part, lowered);
  at::Tensor sum = start_leave(part, axis).wait();
  if (adds) return sum;
  return dropout.on() ? ops::dropout_add(sum, residual, dropout) : sum.add_(residual);
}

Pending start_enter(const at::Tensor& x, int64_t rows, const TensorAxis& axis) {
  if (!axis.sequence_parallel()) return {x, {}};
  return start_gather_rows(x, rows, axis);
}

Pending start_leave(const at::Tensor& part, const TensorAxis& axis) {
  if (axis.size() == 1) return {part, {}};
  if (!axis.sequence_parallel()) return start_all_reduce(part, axis);
  return start_reduce_scatter_rows(as_rows(part), axis);
}

WithSpareRows with_spare_rows(const at::Tensor& like, int64_t rows, int64_t spare,
                              int64_t columns) {
  if (spare == 0) return {};
  const at::Tensor all = at::empty({rows + spare, columns}, like.options());
  const auto part = [&](int64_t first, int64_t count) {
    return all.as_strided({count, columns}, {columns, 1}, first * columns);
  };
  return {all, part(0, rows), part(rows, spare)};
}

}  // namespace tessera::detail
