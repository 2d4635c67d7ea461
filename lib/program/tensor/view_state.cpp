// SPDX-License-Identifier: MIT
#include "lib/program/tensor/view_state.h"

#include <set>
#include <string>

namespace tessera::program {
namespace {

using Sizes = std::vector<Extent>;

// A product of extents: its number, and the expressions in order.
struct Product {
  int64_t number = 1;
  std::multiset<std::string> expressions;

  bool operator==(const Product&) const = default;
};

Product product_of(const Sizes& sizes, size_t first, size_t last) {
  Product product;
  for (size_t i = first; i < last; ++i) {
    if (sizes[i].expression.empty()) {
      product.number *= sizes[i].number;
    } else {
      product.expressions.insert(sizes[i].expression);
    }
  }
  return product;
}

}  // namespace

std::optional<CutState> viewed_state(const Sizes& from, const Sizes& to, const CutState& own) {
  const auto dim = static_cast<size_t>(own.dim);
  for (size_t e = 0; e < to.size(); ++e) {
    const bool same_front = product_of(from, 0, dim) == product_of(to, 0, e);
    const bool same_rest = product_of(from, dim, from.size()) == product_of(to, e, to.size());
    if (!same_front && !same_rest) continue;
    const bool has_one = to[e].expression.empty() && to[e].number == 1;
    if (has_one && e + 1 < to.size()) continue;
    if (own.parts == 1) return CutState{static_cast<int64_t>(e), 1};
    if (to[e] == from[dim]) return CutState{static_cast<int64_t>(e), own.parts};
    const bool splits = to[e].expression.empty() && to[e].number == own.parts;
    if (splits && e + 1 < to.size()) return CutState{static_cast<int64_t>(e) + 1, 1};
    return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace tessera::program
