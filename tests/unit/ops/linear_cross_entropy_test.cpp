// SPDX-License-Identifier: MIT
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "tessera/core/error.h"
#include "tessera/core/lazy_zero.h"
#include "tessera/ops/functional.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

at::Tensor formula(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels) {
  return at::cross_entropy_loss(at::matmul(hidden, weight.t()), labels, {}, at::Reduction::Sum,
                                -100);
}

struct Case {
  at::Tensor hidden = leaf(at::randn({11, 6}));
  at::Tensor weight = leaf(at::randn({17, 6}));
  at::Tensor labels = at::randint(17, {11}, at::kLong);
  Case() { labels.index_fill_(0, at::tensor(std::vector<int64_t>{0, 4, 10}), -100); }
};

}  // namespace

TEST_CASE("linear cross-entropy agrees with its formula for every chunk size") {
  at::manual_seed(8);
  const Case c;
  for (int64_t chunk : {1, 3, 11, 64}) {
    check_gradients(
        {c.hidden, c.weight},
        [&](const Tensors& t) {
          return ops::linear_cross_entropy(t[0], t[1], c.labels, {}, chunk);
        },
        [&](const Tensors& t) { return formula(t[0], t[1], c.labels); }, 2e-6);
  }
}

TEST_CASE("linear cross-entropy adds to a defined weight gradient") {
  at::manual_seed(9);
  Case c;
  const at::Tensor expected = formula(c.hidden, c.weight, c.labels);
  const auto exact = torch::autograd::grad({expected}, {c.hidden, c.weight});
  const at::Tensor before = at::randn_like(c.weight);
  c.weight.mutable_grad() = before.clone();
  const at::Tensor buffer = c.weight.grad();
  const at::Tensor scale = at::full({}, 0.25F);
  const at::Tensor loss = ops::linear_cross_entropy(c.hidden, c.weight, c.labels, scale, 4);
  CHECK(relative_error(loss, expected) < 1e-6);
  CHECK(relative_error(buffer, before + 0.25 * exact[1]) < 1e-6);  // complete after forward
  torch::autograd::backward({loss}, {scale});
  CHECK(c.weight.grad().is_same(buffer));
  CHECK(relative_error(buffer, before + 0.25 * exact[1]) < 1e-6);
  CHECK(relative_error(c.hidden.grad(), 0.25 * exact[0]) < 1e-6);
}

TEST_CASE("linear cross-entropy writes a blank weight gradient and adds its later chunks") {
  at::manual_seed(15);
  Case c;
  const auto exact = torch::autograd::grad({formula(c.hidden, c.weight, c.labels)}, {c.weight});
  c.weight.mutable_grad() = at::full_like(c.weight, NAN);
  declare_lazy_zero({c.weight.grad()});
  for (int i = 1; i <= 2; ++i) {
    ops::linear_cross_entropy(c.hidden, c.weight, c.labels, at::ones({}), 4);
    CHECK(relative_error(c.weight.grad(), i * exact[0]) < 1e-6);
  }
}

TEST_CASE("linear cross-entropy hands the weight gradient to autograd when none is defined") {
  at::manual_seed(10);
  Case c;
  const auto exact = torch::autograd::grad({formula(c.hidden, c.weight, c.labels)}, {c.weight});
  const at::Tensor scale = at::full({}, 0.5F);
  torch::autograd::backward({ops::linear_cross_entropy(c.hidden, c.weight, c.labels, scale)},
                            {scale});
  CHECK(relative_error(c.weight.grad(), 0.5 * exact[0]) < 1e-6);
}

TEST_CASE("rows without a label give no loss and no gradient") {
  const Case c;
  const at::Tensor labels = at::full({11}, -100, at::kLong);
  const at::Tensor loss = ops::linear_cross_entropy(c.hidden, c.weight, labels, {}, 4);
  CHECK(loss.item<float>() == 0.0F);
  torch::autograd::backward({loss});
  CHECK(c.hidden.grad().eq(0).all().item<bool>());
  CHECK(c.weight.grad().eq(0).all().item<bool>());
}

TEST_CASE("without gradients enabled nothing is written") {
  Case c;
  c.weight.mutable_grad() = at::zeros_like(c.weight);
  const at::NoGradGuard guard;
  const at::Tensor loss = ops::linear_cross_entropy(c.hidden, c.weight, c.labels, at::ones({}), 4);
  CHECK(relative_error(loss, formula(c.hidden, c.weight, c.labels)) < 1e-6);
  CHECK(c.weight.grad().eq(0).all().item<bool>());
  CHECK_FALSE(loss.requires_grad());
}

TEST_CASE("a label outside the vocabulary is an error that names the row") {
  Case c;
  c.labels[5] = 17;
  try {
    ops::linear_cross_entropy(c.hidden, c.weight, c.labels);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("row 5 has label 17") != std::string::npos);
  }
}
