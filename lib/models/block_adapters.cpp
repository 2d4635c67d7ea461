#include "lib/models/block_adapters.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lib/ops/random.h"
#include "tessera/ops/functional.h"

namespace tessera::detail {
namespace {

at::Tensor rows_of(const at::Tensor& x) { return x.view({-1, x.size(-1)}); }

}  // namespace

bool ProductAdapters::any() const {
  return std::ranges::any_of(weights_.adapters, &LoraWeights::defined);
}

// Every layout drops the same: ranks that hold columns of x draw for all of them.
at::Tensor ProductAdapters::dropped(const at::Tensor& x, size_t i) const {
  const double probability = options_.adapters.dropout;
  if (probability == 0) return x;
  const auto place = static_cast<size_t>(product_) + i;
  const ops::Dropout drop{probability, block_seed(options_.adapters.seed, place)};
  const bool of_columns = product_ == BlockProduct::kDense || product_ == BlockProduct::kDown;
  const TensorAxis& axis = options_.axis;
  if (!of_columns || axis.size() == 1) {
    return ops::dropout(x, drop.probability, drop.seed);
  }
  std::vector<int64_t> whole = x.sizes().vec();
  whole.back() *= axis.size();
  const at::Tensor factors = ops::dropout_factors(whole, x.scalar_type(), drop, x.device());
  return x * factors.narrow(-1, axis.rank() * x.size(-1), x.size(-1));
}

at::Tensor ProductAdapters::forward(const at::Tensor& x, size_t i) const {
  if (weights_.adapters.empty() || !weights_.adapters[i].defined()) return {};
  const LoraWeights& adapter = weights_.adapters[i];
  return ops::linear(ops::linear(dropped(x, i), adapter.a, {}), adapter.b, {}) *
         options_.adapters.scale;
}

AdapterInputs ProductAdapters::add(const at::Tensor& y, const at::Tensor& x) const {
  AdapterInputs lowered(weights_.adapters.size());
  int64_t column = 0;
  for (size_t i = 0; i < weights_.adapters.size(); ++i) {
    const LoraWeights& adapter = weights_.adapters[i];
    const int64_t n = weights_.outputs(i);
    if (adapter.defined()) {
      lowered[i] = rows_of(ops::linear_forward(dropped(x, i), adapter.a, {}));
      rows_of(y).narrow(1, column, n).addmm_(lowered[i], adapter.b.t(), 1, options_.adapters.scale);
    }
    column += n;
  }
  return lowered;
}

AdapterInputs ProductAdapters::back(const at::Tensor& dy, const at::Tensor& dx,
                                    const AdapterInputs& lowered, const ProductWeights& g) const {
  AdapterInputs dlowered(weights_.adapters.size());
  int64_t column = 0;
  for (size_t i = 0; i < weights_.adapters.size(); ++i) {
    const LoraWeights& adapter = weights_.adapters[i];
    const int64_t n = weights_.outputs(i);
    if (adapter.defined()) {
      const at::Tensor own = rows_of(dy).narrow(1, column, n);
      dlowered[i] = at::mm(own, adapter.b).mul_(options_.adapters.scale);
      if (g.adapters[i].b.defined()) {
        ops::linear_backward_weight(own, lowered[i] * options_.adapters.scale, g.adapters[i].b);
      }
      const at::Tensor back = rows_of(dx);
      if (options_.adapters.dropout == 0) {
        back.addmm_(dlowered[i], adapter.a);
      } else {
        back.add_(rows_of(dropped(at::mm(dlowered[i], adapter.a).view(dx.sizes()), i)));
      }
    }
    column += n;
  }
  return dlowered;
}

void ProductAdapters::finish(const AdapterInputs& dlowered, const at::Tensor& x,
                             const ProductWeights& g) const {
  for (size_t i = 0; i < dlowered.size(); ++i) {
    if (!dlowered[i].defined() || !g.adapters[i].a.defined()) continue;
    ops::linear_backward_weight(dlowered[i], rows_of(dropped(x, i)), g.adapters[i].a);
  }
}

}  // namespace tessera::detail
