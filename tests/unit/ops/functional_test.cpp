// SPDX-License-Identifier: MIT
#include "tessera/ops/functional.h"

#include <cmath>

#include "tessera/core/error.h"
#include "tessera/core/lazy_zero.h"
#include "tessera/ops/kernels.h"
#include "tests/unit/ops/cleared.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("linear agrees with its formula") {
  at::manual_seed(1);
  check_gradients(
      {at::randn({2, 3, 5}), at::randn({7, 5}), at::randn({7})},
      [](const Tensors& t) { return ops::linear(t[0], t[1], t[2]); },
      [](const Tensors& t) { return at::matmul(t[0], t[1].t()) + t[2]; }, 1e-6);
  check_gradients(
      {at::randn({3, 5}), at::randn({7, 5})},
      [](const Tensors& t) { return ops::linear(t[0], t[1], {}); },
      [](const Tensors& t) { return at::matmul(t[0], t[1].t()); }, 1e-6);
}

TEST_CASE("linear with a weight stored [in, out] agrees with its formula") {
  at::manual_seed(1);
  check_gradients(
      {at::randn({2, 3, 5}), at::randn({5, 7}), at::randn({7})},
      [](const Tensors& t) { return ops::linear_in_out(t[0], t[1], t[2]); },
      [](const Tensors& t) { return at::matmul(t[0], t[1]) + t[2]; }, 1e-6);
  check_gradients(
      {at::randn({3, 5}), at::randn({5, 7})},
      [](const Tensors& t) { return ops::linear_in_out(t[0], t[1], {}); },
      [](const Tensors& t) { return at::matmul(t[0], t[1]); }, 1e-6);
}

TEST_CASE("RMS norm agrees with its formula, in fp32") {
  at::manual_seed(12);
  const auto formula = [](const Tensors& t) {
    return t[0] / (t[0].square().mean(-1, true) + 1e-3).sqrt() * t[1];
  };
  const auto operation = [](const Tensors& t) { return ops::rms_norm(t[0], t[1], 1e-3); };
  const Tensors inputs{at::randn({2, 5, 37}) * 0.2, at::randn({37})};
  check_gradients(inputs, operation, formula, 2e-6);
  check_gradients({inputs[0].to(at::kBFloat16), inputs[1].to(at::kBFloat16)}, operation, formula,
                  1e-2);
  CHECK_THROWS_AS(ops::rms_norm(at::ones({2, 3}), at::ones({4}), 1e-5), Error);
}

TEST_CASE("swiglu agrees with its formula") {
  at::manual_seed(13);
  check_gradients(
      {at::randn({4, 9}) * 2, at::randn({4, 9})},
      [](const Tensors& t) { return ops::swiglu(t[0], t[1]); },
      [](const Tensors& t) { return t[0] * t[0].sigmoid() * t[1]; }, 1e-6);
  CHECK_THROWS_AS(ops::swiglu(at::ones({2, 3}), at::ones({2, 4})), Error);
}

TEST_CASE("layer norm agrees with its formula, statistics in fp32") {
  at::manual_seed(2);
  const auto formula = [](const Tensors& t) {
    const at::Tensor centred = t[0] - t[0].mean(-1, true);
    return centred / (centred.square().mean(-1, true) + 1e-5).sqrt() * t[1] + t[2];
  };
  const auto operation = [](const Tensors& t) { return ops::layer_norm(t[0], t[1], t[2], 1e-5); };
  // A mean far from zero: a one-pass variance would cancel.
  const Tensors inputs{at::randn({2, 5, 37}) * 0.5 + 20, at::randn({37}), at::randn({37})};
  check_gradients(inputs, operation, formula, 2e-5);
  Tensors low;
  for (const auto& input : inputs) low.push_back(input.to(at::kBFloat16));
  check_gradients(low, operation, formula, 1e-2);
  CHECK_THROWS_AS(ops::layer_norm(at::ones({2, 3}), at::ones({4}), at::ones({4}), 1e-5), Error);
}

TEST_CASE("norms clear other memory beside their work") {
  at::manual_seed(4);
  check_cleared(at::TensorOptions(), 5, 16, 8, 16);
}

TEST_CASE("a product into the first rows of a longer result leaves the others alone") {
  at::manual_seed(5);
  const at::Tensor x = at::randn({2, 3, 5}), weight = at::randn({7, 5}), bias = at::randn({7});
  const at::Tensor result = at::full({9, 7}, 5.0);
  CHECK(ops::linear_forward(x, weight, bias, {}, result).is_same(result));
  CHECK(result.narrow(0, 0, 6).equal(ops::linear_forward(x, weight, bias).view({6, 7})));
  CHECK(result.narrow(0, 6, 3).eq(5).all().item<bool>());
}

TEST_CASE("gelu_tanh agrees with its formula") {
  at::manual_seed(3);
  check_gradients(
      {at::randn({4, 33}) * 3}, [](const Tensors& t) { return ops::gelu_tanh(t[0]); },
      [](const Tensors& t) {
        const at::Tensor x = t[0];
        return 0.5 * x * (1 + (0.7978845608028654 * (x + 0.044715 * x.pow(3))).tanh());
      },
      1e-6);
}

TEST_CASE("embedding adds every id's gradient rows") {
  at::manual_seed(4);
  const at::Tensor ids = at::randint(5, {3, 40}, at::kLong);
  check_gradients(
      {at::randn({6, 9})}, [&](const Tensors& t) { return ops::embedding(ids, t[0]); },
      [&](const Tensors& t) { return t[0].index({ids}); }, 1e-6);
}

TEST_CASE("embedding adds into a blank gradient as into zeros") {
  const at::Tensor weight = at::zeros({3, 8}).requires_grad_(true);
  weight.mutable_grad() = at::full({3, 8}, NAN);
  declare_lazy_zero({weight.grad()});
  const at::Tensor y = ops::embedding(at::ones({5}, at::kLong), weight);
  torch::autograd::backward({y}, {at::ones_like(y)});
  CHECK(weight.grad()[1].eq(5).all().item<bool>());
  CHECK(weight.grad()[0].eq(0).all().item<bool>());
}

TEST_CASE("embedding adds into a defined gradient, in 16 bits without losing small rows") {
  const at::Tensor weight = at::zeros({3, 8}, at::kBFloat16).requires_grad_(true);
  weight.mutable_grad() = at::ones({3, 8}, at::kBFloat16);
  const at::Tensor ids = at::ones({1000}, at::kLong);
  const at::Tensor y = ops::embedding(ids, weight);
  torch::autograd::backward({y}, {at::full_like(y, 1.0 / 256)});
  // Adding one row at a time would stop growing: 1 + 1/256 rounds to 1.
  CHECK(weight.grad()[1].eq(4.90625).all().item<bool>());
  CHECK(weight.grad()[0].eq(1).all().item<bool>());
}
