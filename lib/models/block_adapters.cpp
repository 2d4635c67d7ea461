// SPDX-License-Identifier: MIT
#include "lib/models/block_adapters.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "lib/models/block_products.h"
#include "lib/models/cut_dropout.h"
#include "lib/ops/random.h"
#include "tessera/ops/functional.h"

namespace tessera::detail {
namespace {

at::Tensor rows_of(const at::Tensor& x) { return x.view({-1, x.size(-1)}); }

// to = scale a b, overwriting `to`.
void set_product(at::Tensor to, const at::Tensor& a, const at::Tensor& b, double scale) {
  at::addmm_out(to, to, a, b, /*beta=*/0, scale);
}

}  // namespace

bool ProductAdapters::any() const {
  return std::ranges::any_of(weights_.adapters, &LoraWeights::defined);
}

// All layouts drop the same elements: ranks with a part of x's columns draw for all columns.
at::Tensor ProductAdapters::dropped(const at::Tensor& x, size_t i) const {
  const double probability = options_.adapters.dropout;
  if (probability == 0) return x;
  const auto place = static_cast<size_t>(product_) + i;
  const ops::Dropout drop{probability, block_seed(options_.adapters.seed, place)};
  const CutRows* const cut = options_.cut_rows.get();
  const bool of_columns = product_ == BlockProduct::kDense || product_ == BlockProduct::kDown;
  const TensorAxis& axis = options_.axis;
  if (!of_columns || axis.size() == 1) {
    return dropout_of_cut(x, drop, cut);
  }
  std::vector<int64_t> whole = x.sizes().vec();
  whole.back() *= axis.size();
  const at::Tensor factors = dropout_factors_of_cut(whole, x.scalar_type(), drop, x.device(), cut);
  return x * factors.narrow(-1, axis.rank() * x.size(-1), x.size(-1));
}

at::Tensor ProductAdapters::forward(const at::Tensor& x, size_t i) const {
  if (weights_.adapters.empty() || !weights_.adapters[i].defined()) return {};
  const LoraWeights& adapter = weights_.adapters[i];
  return ops::linear(ops::linear(dropped(x, i), adapter.a, {}), adapter.b, {}) *
         options_.adapters.scale;
}

at::Tensor ProductAdapters::joint(const ProductWeights& of) const {
  if (options_.adapters.dropout > 0) return {};
  Pieces pieces;
  for (size_t i = 0; i < weights_.adapters.size(); ++i) {
    if (weights_.adapters[i].defined()) pieces.push_back(of.adapters[i].a);
  }
  return adjacent(pieces);
}

at::Tensor ProductAdapters::room(const at::Tensor& x) const {
  int64_t ranks = 0;
  for (const LoraWeights& adapter : weights_.adapters) {
    if (adapter.defined()) ranks += adapter.a.size(0);
  }
  return at::empty({rows_of(x).size(0), ranks}, x.options());
}

template <typename Function>
void ProductAdapters::for_each(const at::Tensor& lowered, const at::Tensor& y,
                               const Function& function) const {
  int64_t rank = 0, column = 0;
  for (size_t i = 0; i < weights_.adapters.size(); ++i) {
    const LoraWeights& adapter = weights_.adapters[i];
    const int64_t n = weights_.outputs(i);
    if (adapter.defined()) {
      const int64_t r = adapter.a.size(0);
      function(i, adapter, lowered.narrow(1, rank, r),
               y.defined() ? rows_of(y).narrow(1, column, n) : at::Tensor());
      rank += r;
    }
    column += n;
  }
}

at::Tensor ProductAdapters::lower(const at::Tensor& x) const {
  if (!any()) return {};
  const at::Tensor lowered = room(x), all = joint(weights_);
  if (all.defined()) {
    set_product(lowered, rows_of(x), all.t(), options_.adapters.scale);
  } else {
    for_each(lowered, {}, [&](size_t i, const LoraWeights& adapter, const at::Tensor& own, auto&&) {
      set_product(own, rows_of(dropped(x, i)), adapter.a.t(), options_.adapters.scale);
    });
  }
  return lowered;
}

at::Tensor ProductAdapters::lift(const at::Tensor& lowered, const at::Tensor& x) const {
  if (!any()) return {};
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = 0;
  for (size_t i = 0; i < weights_.weights.size(); ++i) sizes.back() += weights_.outputs(i);
  const bool all = std::ranges::all_of(weights_.adapters, &LoraWeights::defined);
  const at::Tensor y = all ? at::empty(sizes, x.options()) : at::zeros(sizes, x.options());
  for_each(lowered, y,
           [](size_t, const LoraWeights& adapter, const at::Tensor& own,
              const at::Tensor& columns) { set_product(columns, own, adapter.b.t(), 1); });
  return y;
}

void ProductAdapters::add_lifted(const at::Tensor& y, const at::Tensor& lowered) const {
  if (!any()) return;
  for_each(lowered, y,
           [](size_t, const LoraWeights& adapter, const at::Tensor& own,
              const at::Tensor& columns) { columns.addmm_(own, adapter.b.t()); });
}

at::Tensor ProductAdapters::back(const at::Tensor& dy, const at::Tensor& dx) const {
  if (!any()) return {};
  const at::Tensor dlowered = room(dx), all = joint(weights_);
  for_each(
      dlowered, dy,
      [&](size_t, const LoraWeights& adapter, const at::Tensor& own, const at::Tensor& columns) {
        set_product(own, columns, adapter.b, options_.adapters.scale);
      });
  const at::Tensor back = rows_of(dx);
  if (all.defined()) {
    back.addmm_(dlowered, all);
    return dlowered;
  }
  for_each(dlowered, {}, [&](size_t i, const LoraWeights& adapter, const at::Tensor& own, auto&&) {
    if (options_.adapters.dropout == 0) {
      back.addmm_(own, adapter.a);
    } else {
      back.add_(rows_of(dropped(at::mm(own, adapter.a).view(dx.sizes()), i)));
    }
  });
  return dlowered;
}

void ProductAdapters::add_gradients(const at::Tensor& dy, const at::Tensor& x,
                                    const at::Tensor& lowered, const at::Tensor& dlowered,
                                    const ProductWeights& g) const {
  if (!any()) return;
  for_each(lowered, dy,
           [&](size_t i, const LoraWeights&, const at::Tensor& own, const at::Tensor& columns) {
             const at::Tensor& gradient = g.adapters[i].b;
             if (gradient.defined()) ops::linear_backward_weight(columns, own, gradient);
           });
  if (const at::Tensor all = joint(g); all.defined()) {
    return ops::linear_backward_weight(dlowered, rows_of(x), all);
  }
  for_each(dlowered, {}, [&](size_t i, const LoraWeights&, const at::Tensor& own, auto&&) {
    const at::Tensor& gradient = g.adapters[i].a;
    if (gradient.defined()) ops::linear_backward_weight(own, rows_of(dropped(x, i)), gradient);
  });
}

}  // namespace tessera::detail
