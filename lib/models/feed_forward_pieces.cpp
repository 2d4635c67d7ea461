// SPDX-License-Identifier: MIT
#include "lib/models/feed_forward_pieces.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lib/models/block_activation.h"
#include "lib/models/block_adapters.h"
#include "lib/models/block_norm.h"
#include "lib/models/block_products.h"

namespace tessera::detail {
namespace {

constexpr int64_t kMostInnerBytes = int64_t{1} << 30;
constexpr int64_t kPieceBytes = int64_t{1} << 29;
constexpr int64_t kRowMultiple = 64;  // of pieces

int64_t columns_of(const ProductWeights& p) {
  int64_t columns = 0;
  for (size_t i = 0; i < p.weights.size(); ++i) columns += p.outputs(i);
  return columns;
}

at::Tensor rows_of(const at::Tensor& x) { return x.view({-1, x.size(-1)}); }

// Calls function(first row, rows) for all pieces.
template <typename Function>
void for_each_piece(int64_t rows, int64_t rows_of_piece, const Function& function) {
  for (int64_t first = 0; first < rows; first += rows_of_piece) {
    function(first, std::min(rows_of_piece, rows - first));
  }
}

}  // namespace

int64_t piece_rows(const at::Tensor& x, const ProductWeights& up,
                   const DecoderBlockOptions& options) {
  if (options.axis.size() > 1 || options.fp8 != Fp8::kOff || options.dropout[1].on() ||
      options.adapters.dropout > 0 || options.deferred_gradients != nullptr) {
    return 0;
  }
  const int64_t rows = x.numel() / x.size(-1);
  if (options.feed_forward_rows > 0) {
    return rows > options.feed_forward_rows ? options.feed_forward_rows : 0;
  }
  const int64_t row_bytes = columns_of(up) * static_cast<int64_t>(x.element_size());
  if (rows * row_bytes <= kMostInnerBytes) return 0;
  const int64_t pieces = (rows * row_bytes + kPieceBytes - 1) / kPieceBytes;
  const int64_t even = (rows + pieces - 1) / pieces;
  return (even + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

InnerActivations inner_activations(const at::Tensor& x, const ProductWeights& up,
                                   const DecoderBlockOptions& options, bool keep_inner,
                                   at::Tensor* largest) {
  InnerActivations made;
  const ProductAdapters adapters(up, options, BlockProduct::kUp);
  if (options.gated || options.exact_gelu || options.fp8 != Fp8::kOff || adapters.any()) {
    made.lowered = adapters.lower(x);
    made.inner = forward_product({BlockProduct::kUp, options}, x, up, bias_of(up),
                                 adapters.lift(made.lowered, x));
    made.active = activation_forward(made.inner, options, largest);
  } else {
    made.active =
        ops::linear_gelu_forward(x, weight_of(up), bias_of(up), keep_inner ? &made.inner : nullptr);
  }
  return made;
}

at::Tensor feed_forward_in_pieces(const at::Tensor& x, const at::Tensor& residual,
                                  const DecoderBlockWeights& w, const DecoderBlockOptions& options,
                                  int64_t rows_of_piece) {
  at::Tensor output = at::empty_like(residual);
  const at::Tensor all_x = rows_of(x), all_residual = rows_of(residual), result = rows_of(output);
  const ProductAdapters of_down(w.down, options, BlockProduct::kDown);
  for_each_piece(all_x.size(0), rows_of_piece, [&](int64_t first, int64_t count) {
    const auto piece = [&](const at::Tensor& all) { return all.narrow(0, first, count); };
    const at::Tensor active =
        inner_activations(piece(all_x), w.up, options, /*keep_inner=*/false).active;
    const at::Tensor sum = forward_product({BlockProduct::kDown, options}, active, w.down,
                                           only_bias(w.down), piece(all_residual), piece(result));
    of_down.add_lifted(sum, of_down.lower(active));
  });
  return output;
}

at::Tensor feed_forward_in_pieces_backward(const at::Tensor& gradient, const at::Tensor& attended,
                                           const DecoderBlockWeights& w,
                                           const DecoderBlockWeights& g,
                                           const DecoderBlockOptions& options,
                                           int64_t rows_of_piece, BlockWeightGradients& weights) {
  at::Tensor dx = at::empty_like(attended);
  const at::Tensor dy = rows_of(gradient), before = rows_of(attended), result = rows_of(dx);
  const ProductAdapters of_up(w.up, options, BlockProduct::kUp),
      of_down(w.down, options, BlockProduct::kDown);
  for_each_piece(dy.size(0), rows_of_piece, [&](int64_t first, int64_t count) {
    const auto piece = [&](const at::Tensor& all) { return all.narrow(0, first, count); };
    const at::Tensor x = norm_forward(piece(before), w.attention_norm, options.epsilon).output;
    const InnerActivations made = inner_activations(x, w.up, options, /*keep_inner=*/true);
    at::Tensor active = made.active;
    const at::Tensor dactive = backward_input({BlockProduct::kDown, options}, piece(dy), w.down);
    const at::Tensor ddown = of_down.back(piece(dy), dactive);
    weights.add({BlockProduct::kDown, piece(dy), active, of_down.lower(active), ddown});
    ops::ColumnSums sums;
    const at::Tensor dinner =
        activation_backward(dactive, made.inner, &active, options, w.up, g.up, sums);
    ops::add_column_sums(sums);
    active.reset();
    backward_input_out({BlockProduct::kUp, options}, dinner, w.up, piece(result));
    const at::Tensor dlowered = of_up.back(dinner, piece(result));
    weights.add({BlockProduct::kUp, dinner, x, made.lowered, dlowered});
  });
  return dx;
}

}  // namespace tessera::detail
