// SPDX-License-Identifier: MIT
#include "lib/models/expert_adapters.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lib/models/cut_dropout.h"
#include "lib/ops/grouped_product.h"
#include "lib/ops/random.h"

namespace tessera::detail {

bool ExpertAdapters::any() const { return std::ranges::any_of(adapters_, &LoraWeights::defined); }

template <typename Function>
void ExpertAdapters::for_each(const at::Tensor& y, const Function& function) const {
  const auto count = static_cast<int64_t>(adapters_.size());
  for (int64_t i = 0; i < count; ++i) {
    const LoraWeights& adapter = adapters_[static_cast<size_t>(i)];
    if (!adapter.defined()) continue;
    const int64_t columns = y.defined() ? y.size(1) / count : 0;  // those of gate, or of up
    function(i, adapter, y.defined() ? y.narrow(1, i * columns, columns) : at::Tensor());
  }
}

at::Tensor ExpertAdapters::room(const at::Tensor& rows) const {
  const auto adapter = std::ranges::find_if(adapters_, &LoraWeights::defined);
  return at::empty({static_cast<int64_t>(adapters_.size()), rows.size(0), adapter->a.size(1)},
                   rows.options());
}

// An element is dropped by its token, its place among the token's experts, and its column, so that
// all layouts drop the same ones.
at::Tensor ExpertAdapters::dropped(const at::Tensor& rows, size_t i) const {
  const double probability = options_.adapters.dropout;
  if (probability == 0) return rows;
  const auto place = static_cast<size_t>(product_) + i;
  const ops::Dropout drop{probability, block_seed(options_.adapters.seed, place)};
  const TensorAxis& axis = options_.axis;
  const bool of_columns = product_ == BlockProduct::kDown && axis.size() > 1;
  const int64_t columns = rows.size(1), whole = columns * (of_columns ? axis.size() : 1);
  std::vector<int64_t> shape = tokens_.vec();
  shape.push_back(order_.rows.size(1) * whole);
  at::Tensor factors = dropout_factors_of_cut(shape, rows.scalar_type(), drop, rows.device(),
                                              options_.cut_rows.get())
                           .view({-1, whole});
  if (of_columns) factors = factors.narrow(1, axis.rank() * columns, columns);
  return rows * factors.index_select(0, order_.slots);
}

at::Tensor ExpertAdapters::lower(const at::Tensor& rows) const {
  if (!any()) return {};
  const at::Tensor lowered = room(rows);
  for_each({}, [&](int64_t i, const LoraWeights& adapter, auto&&) {
    const at::Tensor x = dropped(rows, static_cast<size_t>(i)), a = adapter.a.transpose(1, 2);
    const at::Tensor product = ops::grouped_product(x, a, order_.ends);
    at::Tensor own = lowered.select(0, i);
    at::mul_out(own, product, at::Scalar(options_.adapters.scale));
  });
  return lowered;
}

void ExpertAdapters::add_lifted(const at::Tensor& y, const at::Tensor& lowered) const {
  if (!any()) return;
  for_each(y, [&](int64_t i, const LoraWeights& adapter, const at::Tensor& columns) {
    const at::Tensor b = adapter.b.transpose(1, 2);
    columns.add_(ops::grouped_product(lowered.select(0, i), b, order_.ends));
  });
}

at::Tensor ExpertAdapters::back(const at::Tensor& dy, const at::Tensor& dx) const {
  if (!any()) return {};
  const at::Tensor dlowered = room(dx);
  for_each(dy, [&](int64_t i, const LoraWeights& adapter, const at::Tensor& columns) {
    at::Tensor own = dlowered.select(0, i);
    at::mul_out(own, ops::grouped_product(columns, adapter.b, order_.ends),
                at::Scalar(options_.adapters.scale));
    const at::Tensor part = ops::grouped_product(own, adapter.a, order_.ends);
    dx.add_(dropped(part, static_cast<size_t>(i)));
  });
  return dlowered;
}

void ExpertAdapters::add_gradients(const at::Tensor& dy, const at::Tensor& rows,
                                   const at::Tensor& lowered, const at::Tensor& dlowered,
                                   const Weights& g) const {
  if (!any()) return;
  for_each(dy, [&](int64_t i, auto&&, const at::Tensor& columns) {
    const LoraWeights& to = g[static_cast<size_t>(i)];
    if (to.b.defined()) {
      ops::grouped_weight_gradient(columns, lowered.select(0, i), order_.ends, to.b);
    }
    if (to.a.defined()) {
      ops::grouped_weight_gradient(dlowered.select(0, i), dropped(rows, static_cast<size_t>(i)),
                                   order_.ends, to.a);
    }
  });
}

}  // namespace tessera::detail
