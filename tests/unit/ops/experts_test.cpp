// SPDX-License-Identifier: MIT
// Routing, the order of rows by expert, and grouped products against plain formulas.
#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "lib/ops/expert_rows.h"
#include "lib/ops/grouped_product.h"
#include "lib/ops/routing.h"
#include "tessera/core/error.h"
#include "tessera/core/lazy_zero.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

std::vector<int64_t> numbers(const at::Tensor& x) {
  const at::Tensor flat = x.to(at::kLong).contiguous().view(-1);
  const auto* const first = flat.const_data_ptr<int64_t>();
  return {first, first + flat.numel()};
}

at::Tensor ints(const std::vector<int64_t>& values) { return at::tensor(values, at::kInt); }

}  // namespace

TEST_CASE("tokens take the experts of the largest probabilities, and gradients are softmax's") {
  at::manual_seed(1);
  for (const bool normalised : {false, true}) {
    const ops::RoutingOptions options{3, normalised};
    const at::Tensor logits = at::randn({11, 7}, at::kDouble).mul_(3).requires_grad_(true);
    const at::Tensor probabilities = logits.softmax(-1);
    const auto [values, experts] = probabilities.topk(3, -1);
    const at::Tensor expected = normalised ? values / values.sum(-1, true) : values;
    const ops::Routing routing = ops::route(logits.detach(), options);
    CHECK(at::equal(routing.experts, experts));
    CHECK(relative_error(routing.weights, expected.detach()) < 1e-15);
    const at::Tensor gradient = at::randn({11, 3}, at::kDouble);
    const auto exact = torch::autograd::grad({expected}, {logits}, {gradient});
    CHECK(relative_error(ops::route_backward(gradient, routing, options), exact[0]) < 1e-14);
  }
}

TEST_CASE("rows lie behind each other by expert, then token, and come back to their tokens") {
  at::manual_seed(2);
  // Expert 2 has no token.
  const at::Tensor experts =
      at::tensor(std::vector<int64_t>{3, 0, 1, 3, 0, 1, 3, 1, 4, 3}).view({5, 2});
  const ops::ExpertOrder order = ops::expert_order(experts, 5);
  CHECK(numbers(order.ends) == std::vector<int64_t>{2, 5, 5, 9, 10});
  CHECK(numbers(order.slots) == std::vector<int64_t>{1, 4, 2, 5, 7, 0, 3, 6, 9, 8});
  CHECK(numbers(order.tokens) == std::vector<int64_t>{0, 2, 1, 2, 3, 0, 1, 3, 4, 4});
  CHECK(numbers(order.rows.view(-1).index_select(0, order.slots)) ==
        std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  const at::Tensor x = at::randn({5, 4}, at::kDouble);
  const at::Tensor rows = ops::dispatch_rows(x, order);
  CHECK(at::equal(rows.select(0, 3), x.select(0, 2)));
  CHECK(relative_error(ops::combine_rows(rows, order, {}), x * 2) < 1e-15);

  const at::Tensor many = at::randint(0, 9, {300, 4}, at::kLong);
  const ops::ExpertOrder sorted = ops::expert_order(many, 9);
  const auto [values, stable] = at::sort(many.view(-1), /*stable=*/true, 0, false);
  CHECK(at::equal(sorted.slots, stable));
  CHECK(sorted.ends.select(0, 8).item<int>() == 1200);
  CHECK_THROWS_AS(ops::expert_order(many, 8), Error);
  const at::Tensor too_many =
      at::empty({int64_t{1} << 29, 4}, at::dtype(at::kLong).device(at::kMeta));
  CHECK_THROWS_WITH(ops::expert_order(too_many, 8), Catch::Contains("2147483648 rows"));
}

TEST_CASE("grouped products are one product for each group, of which some are empty") {
  at::manual_seed(3);
  const std::vector<int64_t> ends{4, 4, 9, 10, 10};
  const at::Tensor x = at::randn({12, 6}, at::kDouble), weight = at::randn({5, 8, 6}, at::kDouble),
                   gradient = at::randn({12, 8}, at::kDouble);
  const at::Tensor y = ops::grouped_product(x, weight.transpose(1, 2), ints(ends));
  const at::Tensor sink = at::full_like(weight, 0.5), blank = at::full_like(weight, NAN);
  declare_lazy_zero({blank});
  ops::grouped_weight_gradient(gradient, x, ints(ends), sink);
  ops::grouped_weight_gradient(gradient, x, ints(ends), blank);
  const at::Tensor wide = at::full(weight.sizes(), 0.5, at::kDouble);
  ops::grouped_weight_gradient(gradient.to(at::kFloat), x.to(at::kFloat), ints(ends), wide);
  int64_t first = 0;
  for (int64_t group = 0; group < 5; ++group) {
    const int64_t count = ends[size_t(group)] - first;
    const at::Tensor rows = x.narrow(0, first, count), dy = gradient.narrow(0, first, count);
    CHECK(relative_error(y.narrow(0, first, count), rows.mm(weight[group].t())) < 1e-14);
    CHECK(relative_error(blank[group], dy.t().mm(rows)) < 1e-14);
    CHECK(relative_error(sink[group] - 0.5, dy.t().mm(rows)) < 1e-14);
    CHECK(relative_error(wide[group] - 0.5, dy.t().mm(rows)) < 1e-6);
    first = ends[size_t(group)];
  }
  CHECK(y.narrow(0, 10, 2).eq(0).all().item<bool>());  // behind the last end
  CHECK_THROWS_WITH(ops::grouped_product(x, weight.transpose(1, 2), ints({4, 3, 9, 10, 12})),
                    Catch::Contains("the rows of expert 1 end at 3 of 12"));
  CHECK_THROWS_AS(ops::grouped_product(x, weight.transpose(1, 2), ints({4, 4, 9, 10, 13})), Error);
}
