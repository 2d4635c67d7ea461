// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>

#include "tessera/ops/functional.h"
#include "tests/support/bloom_block.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kHidden = 24, kHeads = 3;

Tensors make_weights(at::ScalarType type) {
  const int64_t h = kHidden;
  const auto matrix = [](int64_t out, int64_t in) {
    return at::randn({out, in}) / std::sqrt(double(in));
  };
  const auto vector = [](int64_t n, double centre) { return centre + 0.3 * at::randn({n}); };
  Tensors list{vector(h, 1),     vector(h, 0),     matrix(3 * h, h), vector(3 * h, 0),
               matrix(h, h),     vector(h, 0),     vector(h, 1),     vector(h, 0),
               matrix(4 * h, h), vector(4 * h, 0), matrix(h, 4 * h), vector(h, 0)};
  for (at::Tensor& x : list) x = leaf(x.to(type));
  return list;
}

using Version = decltype(&bloom_block_fused);

struct Result {
  at::Tensor output, dhidden;
  Tensors gradients;
};

// Gradients hold partial sums, as inside a strategy, or are undefined.
Result run(Version version, const at::Tensor& hidden, const Tensors& weights,
           const at::Tensor& mask, bool post, bool defined, const PackedRows& packed = {},
           const BloomBlockTraining& dropout = {}) {
  Tensors mine;
  for (const at::Tensor& w : weights) {
    mine.push_back(leaf(w));
    if (defined) mine.back().mutable_grad() = at::full_like(w, 0.5);
  }
  const at::Tensor input = leaf(hidden);
  const at::Tensor output = version(input, bloom_weights(mine), ops::alibi_slopes(kHeads), mask,
                                    1e-5, post, {}, {}, packed, dropout);
  torch::autograd::backward(
      {output}, {at::linspace(-1, 1, output.numel(), output.options()).view_as(output)});
  Result result{output, input.grad(), {}};
  for (const at::Tensor& w : mine) result.gradients.push_back(w.grad());
  return result;
}

void compare(at::ScalarType type, const at::Tensor& mask, bool post, bool defined, double tolerance,
             const PackedRows& packed = {}, const BloomBlockTraining& dropout = {}) {
  const at::Tensor hidden = at::randn({2, 7, kHidden}).to(type);
  const Tensors weights = make_weights(type);
  Tensors exact;
  for (const at::Tensor& w : weights) exact.push_back(w.to(at::kDouble));
  const Result a = run(&bloom_block_fused, hidden, weights, mask, post, defined, packed, dropout);
  const Result b = run(&bloom_block_composed, hidden.to(at::kDouble), exact, mask, post, defined,
                       packed, dropout);
  CHECK(relative_error(a.output, b.output) < tolerance);
  CHECK(relative_error(a.dhidden, b.dhidden) < tolerance);
  for (size_t i = 0; i < weights.size(); ++i) {
    INFO("gradient of weight " << i);
    CHECK(relative_error(a.gradients[i], b.gradients[i]) < tolerance);
  }
}

}  // namespace

TEST_CASE("the fused BLOOM block is the composed one, values and gradients") {
  at::manual_seed(21);
  const at::Tensor mask =
      at::arange(7).unsqueeze(0).ge(at::tensor(std::vector<int64_t>{2, 0}).unsqueeze(1));
  for (const bool post : {false, true}) {
    for (const bool defined : {true, false}) {
      compare(at::kFloat, {}, post, defined, 2e-5);
      compare(at::kDouble, mask, post, defined, 1e-11);
      compare(at::kBFloat16, mask, post, defined, 3e-2);
    }
  }
}

TEST_CASE("the fused BLOOM block drops what the composed one drops, forwards and backwards") {
  at::manual_seed(24);
  const at::Tensor mask =
      at::arange(7).unsqueeze(0).ge(at::tensor(std::vector<int64_t>{2, 0}).unsqueeze(1));
  const PackedRows packed = make_packed_rows({3, 4, 5, 1, 1}, 7);
  const BloomBlockTraining dropout{{0.3, 33}, {ops::Dropout{0.2, 31}, ops::Dropout{0.4, 32}}};
  for (const bool post : {false, true}) {
    compare(at::kFloat, {}, post, /*defined=*/true, 2e-5, {}, dropout);
    compare(at::kDouble, mask, post, /*defined=*/false, 1e-11, {}, dropout);
    compare(at::kDouble, {}, post, /*defined=*/true, 1e-11, packed, dropout);
    compare(at::kBFloat16, mask, post, /*defined=*/true, 3e-2, {}, dropout);
  }
  const Tensors weights = make_weights(at::kFloat);
  const at::Tensor hidden = at::randn({2, 7, kHidden});
  const auto output = [&](const BloomBlockTraining& what) {
    return run(&bloom_block_fused, hidden, weights, {}, false, true, {}, what).output;
  };
  const at::Tensor all = output(dropout);
  CHECK(all.equal(output(dropout)));
  CHECK_FALSE(all.allclose(output({{}, dropout.hidden})));
  CHECK_FALSE(all.allclose(output({dropout.attention, {}})));
}

TEST_CASE(
    "the fused block reads its weights through handles whose storage was replaced after forward") {
  at::manual_seed(22);
  const Tensors weights = make_weights(at::kFloat);
  const at::Tensor hidden = at::randn({1, 5, kHidden});
  const Result expected = run(&bloom_block_fused, hidden, weights, {}, false, true);
  Tensors mine;
  for (const at::Tensor& w : weights) {
    mine.push_back(leaf(w));
    mine.back().mutable_grad() = at::full_like(w, 0.5);
  }
  const at::Tensor input = leaf(hidden);
  const at::Tensor output =
      bloom_block_fused(input, bloom_weights(mine), ops::alibi_slopes(kHeads), {}, 1e-5, false);
  for (size_t i = 0; i < mine.size(); ++i) {
    const at::Tensor old = mine[i].detach();
    mine[i].set_data(weights[i].detach().clone());
    old.fill_(1e6);  // reads of the old storage would be wrong
  }
  torch::autograd::backward({output}, {at::linspace(-1, 1, output.numel()).view_as(output)});
  CHECK(input.grad().equal(expected.dhidden));
  for (size_t i = 0; i < mine.size(); ++i) CHECK(mine[i].grad().equal(expected.gradients[i]));
}

TEST_CASE("the fused block without gradients, and with frozen weights") {
  at::manual_seed(23);
  Tensors weights = make_weights(at::kFloat);
  const at::Tensor hidden = at::randn({1, 5, kHidden});
  const auto forward = [&] {
    return bloom_block_fused(hidden, bloom_weights(weights), ops::alibi_slopes(kHeads), {}, 1e-5,
                             false);
  };
  const at::Tensor with = forward();
  {
    const at::NoGradGuard guard;
    CHECK(forward().equal(with));
    CHECK_FALSE(forward().requires_grad());
  }
  weights[2].set_requires_grad(false);
  torch::autograd::backward({forward().sum()});
  CHECK_FALSE(weights[2].grad().defined());
  CHECK(weights[8].grad().defined());
}
