// SPDX-License-Identifier: MIT
#include "lib/models/block_weight_gradients.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "lib/models/block_products.h"
#include "tessera/core/deferred_gradients.h"

namespace tessera::detail {
namespace {

const ProductWeights& weights_of(const DecoderBlockWeights& w, BlockProduct product) {
  switch (product) {
    case BlockProduct::kQkv:
      return w.qkv;
    case BlockProduct::kDense:
      return w.dense;
    case BlockProduct::kUp:
      return w.up;
    case BlockProduct::kDown:
      return w.down;
    case BlockProduct::kSharedGate:
      return w.shared_gate;
  }
  return w.qkv;
}

void make(const ProductWork& work, const DecoderBlockWeights& weights,
          const DecoderBlockWeights& gradients, const DecoderBlockOptions& options) {
  const ProductWeights &w = weights_of(weights, work.product),
                       &g = weights_of(gradients, work.product);
  add_weight({work.product, options}, work.dy, work.x, w, g);
  ProductAdapters(w, options, work.product)
      .add_gradients(work.dy, work.x, work.lowered, work.dlowered, g);
}

bool is_wanted(const ProductWeights& g) {
  return std::ranges::any_of(g.weights, &at::Tensor::defined) ||
         std::ranges::any_of(g.adapters, [](const LoraWeights& adapter) {
           return adapter.a.defined() || adapter.b.defined();
         });
}

// [Note: deferred weight gradients of a block]
// Immediate: backward computes each product's weight gradients together with other work on their
// inputs, so that on a tensor axis every sum over ranks overlaps a product. Deferred: it saves
// those inputs instead; of norms only the rank's own tokens, which are gathered again. Only shapes
// of weights are read later, since their values may be resharded.
struct DeferredWork {
  DecoderBlockWeights w, g;
  DecoderBlockOptions options;
  int64_t rows = 0;
  std::vector<ProductWork> products;
  ops::ColumnSums sums;

  void run() {
    for (ProductWork& kept : products) {
      ProductWork work = std::exchange(kept, {});
      if (work.product == BlockProduct::kQkv || work.product == BlockProduct::kUp) {
        work.x = start_enter(work.x, rows, options.axis).wait();
      }
      make(work, w, g, options);
    }
    ops::add_column_sums(sums);
  }
};

}  // namespace

Pending BlockWeightGradients::enter_norm(const at::Tensor& output) const {
  return deferred() ? Pending{output, {}} : start_enter(output, rows_, options_.axis);
}

void BlockWeightGradients::add(ProductWork work) {
  if (!deferred()) return make(work, w_, g_, options_);
  if (is_wanted(weights_of(g_, work.product))) products_.push_back(std::move(work));
}

void BlockWeightGradients::add(ops::ColumnSums& sums) {
  if (!deferred()) return ops::add_column_sums(sums);
  sums_ = std::exchange(sums, {});
}

void BlockWeightGradients::hand_over() {
  if (!deferred() || (products_.empty() && sums_.items.empty())) return;
  const auto work = std::make_shared<DeferredWork>(
      DeferredWork{w_, g_, options_, rows_, std::move(products_), std::move(sums_)});
  work->options.deferred_gradients.reset();  // the gradients object keeps this one alive
  work->options.gradient_columns.reset();
  options_.deferred_gradients->add([work] { work->run(); });
}

}  // namespace tessera::detail
