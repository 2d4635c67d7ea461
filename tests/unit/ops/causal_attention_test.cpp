// SPDX-License-Identifier: MIT
#include <ATen/core/PhiloxRNGEngine.h>

#include <cmath>
#include <numbers>

#include "tessera/core/error.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/functional.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Plain softmax over visible keys, one query head after another.
at::Tensor formula(const Tensors& t, const at::Tensor& mask, double scale,
                   const at::Tensor& factors = {}) {
  const int64_t n = t[0].size(1), heads = t[0].size(2), groups = heads / t[1].size(2);
  const at::Tensor visible = at::ones({n, n}, at::kBool).tril().logical_and(mask.unsqueeze(1));
  std::vector<at::Tensor> columns;
  for (int64_t head = 0; head < heads; ++head) {
    const at::Tensor q = t[0].select(2, head), k = t[1].select(2, head / groups);
    const at::Tensor scores = at::matmul(q, k.transpose(1, 2)) * scale;
    at::Tensor p = scores.masked_fill(visible.logical_not(), -1e30).softmax(2);
    p = p * visible.any(2, /*keepdim=*/true);
    if (factors.defined()) p = p * factors.select(1, head);
    columns.push_back(at::matmul(p, t[2].select(2, head / groups)));
  }
  return at::cat(columns, 2);
}

void check_attention(int64_t heads, int64_t key_heads, const at::Tensor& mask) {
  const int64_t batch = 2, n = 9, d = 6;
  const at::Tensor keys = mask.defined() ? mask : at::ones({batch, n}, at::kBool);
  const Tensors inputs{at::randn({batch, n, heads, d}), at::randn({batch, n, key_heads, d}),
                       at::randn({batch, n, key_heads, d})};
  const auto expected = [&](const Tensors& t) { return formula(t, keys, 0.3); };
  const auto operation = [&](const Tensors& t) {
    return ops::causal_attention(t[0], t[1], t[2], mask, {.scale = 0.3});
  };
  check_gradients(inputs, operation, expected, 3e-6);
  Tensors low;
  for (const auto& input : inputs) low.push_back(input.to(at::kBFloat16));
  check_gradients(low, operation, expected, 2e-2);
}

}  // namespace

TEST_CASE("causal attention agrees with its formula, one key head for one or several queries") {
  at::manual_seed(21);
  check_attention(3, 3, {});
  check_attention(4, 2, {});
  check_attention(4, 1, {});
}

TEST_CASE("causal attention honours key masks; a query that sees nothing gives 0") {
  at::manual_seed(22);
  const at::Tensor position = at::arange(9).unsqueeze(0);
  check_attention(4, 2, position.ge(at::tensor({3, 0}).unsqueeze(1)));
  check_attention(4, 2, position.lt(at::tensor({9, 4}).unsqueeze(1)));
  at::Tensor mask = at::ones({1, 5}, at::kBool);
  mask.slice(1, 0, 2).fill_(false);
  const at::Tensor x = leaf(at::randn({1, 5, 2, 4}));
  const at::Tensor y = ops::causal_attention(x, x, x, mask, {});
  CHECK(y.slice(1, 0, 2).eq(0).all().item<bool>());
  torch::autograd::backward({y}, {at::ones_like(y)});
  CHECK(x.grad().isfinite().all().item<bool>());
  CHECK(x.grad().slice(1, 0, 2).eq(0).all().item<bool>());
}

TEST_CASE("dropout of attention is drawn per head of the whole model and repeats with its seed") {
  at::manual_seed(23);
  const Tensors t{at::randn({2, 7, 4, 6}), at::randn({2, 7, 4, 6}), at::randn({2, 7, 4, 6})};
  const auto run = [&](int64_t first, int64_t count, uint64_t seed) {
    return ops::causal_attention(t[0].narrow(2, first, count), t[1].narrow(2, first, count),
                                 t[2].narrow(2, first, count), {},
                                 {.dropout = 0.4, .seed = seed, .first_head = first});
  };
  const at::Tensor whole = run(0, 4, 5);
  CHECK(at::equal(whole, run(0, 4, 5)));
  CHECK_FALSE(at::equal(whole, run(0, 4, 6)));
  CHECK(at::allclose(whole.narrow(2, 12, 12), run(2, 2, 5), 1e-5, 1e-6));
  // With values of one, the result is the sum of kept factors: 1 on average.
  const at::Tensor ones = at::ones({8, 64, 2, 4});
  const at::Tensor sums = ops::causal_attention(ones, ones, ones, {}, {.dropout = 0.4, .seed = 9});
  CHECK(sums.mean().item<double>() == Approx(1.0).margin(0.02));
  CHECK(sums.select(1, 0).max().item<double>() == Approx(1 / 0.6));
}

TEST_CASE("dropout zeroes its share, keeps the mean and repeats with its seed") {
  const at::Tensor x = leaf(at::ones({300, 400}));
  const at::Tensor y = ops::dropout(x, 0.25, 11);
  CHECK(y.eq(0).to(at::kDouble).mean().item<double>() == Approx(0.25).margin(0.01));
  CHECK(y.max().item<double>() == Approx(1 / 0.75));
  CHECK(at::equal(y, ops::dropout(x, 0.25, 11)));
  CHECK_FALSE(at::equal(y, ops::dropout(x, 0.25, 12)));
  torch::autograd::backward({y}, {at::ones_like(y)});
  CHECK(at::equal(x.grad(), y.detach()));
  // An element's draw depends on its number, not on its tensor.
  const at::Tensor part = x.slice(0, 3, 50).slice(1, 0, 400);
  CHECK(at::equal(ops::dropout(part, 0.25, 11, 3 * 400), y.slice(0, 3, 50)));
  CHECK(at::equal(ops::dropout(x.view(-1).slice(0, 7, 1000), 0.25, 11, 7),
                  y.view(-1).slice(0, 7, 1000)));
  at::Philox4_32 numbers(11, 5);  // elements 20 to 23
  for (int i = 20; i < 24; ++i) {
    CHECK((y.view(-1)[i].item<float>() == 0) == (numbers() < uint32_t{1} << 30));
  }
  CHECK(at::equal(ops::dropout(x, 0, 11), x));
  CHECK_THROWS_AS(ops::dropout(x, 1, 11), Error);
}

TEST_CASE("rotary turns pairs by position times frequency") {
  at::manual_seed(24);
  const ops::RotaryTables tables =
      ops::rotary_tables(ops::rotary_frequencies(6, {.theta = 100}), 5);
  const auto formula = [](const Tensors& t) {
    at::Tensor y = at::zeros_like(t[0]);
    for (int64_t s = 0; s < 5; ++s) {
      for (int64_t i = 0; i < 3; ++i) {
        const double angle = double(s) * std::pow(100.0, -2.0 * double(i) / 6);
        const at::Tensor a = t[0].select(1, s).select(2, i), b = t[0].select(1, s).select(2, i + 3);
        y.select(1, s).select(2, i).copy_(a * std::cos(angle) - b * std::sin(angle));
        y.select(1, s).select(2, i + 3).copy_(b * std::cos(angle) + a * std::sin(angle));
      }
    }
    return y;
  };
  const auto operation = [&](const Tensors& t) { return ops::rotary(t[0], tables); };
  check_gradients({at::randn({2, 5, 3, 6})}, operation, formula, 1e-6);
  check_gradients({at::randn({2, 5, 3, 6}).to(at::kBFloat16)}, operation, formula, 1e-2);
  CHECK_THROWS_AS(ops::rotary(at::ones({2, 6, 3, 6}), tables), Error);
  CHECK_THROWS_AS(ops::rotary(at::ones({2, 4, 3, 4}), tables), Error);
  const at::Tensor wider = at::randn({2, 4, 3, 8}), turned = ops::rotary(wider, tables);
  CHECK(turned.narrow(3, 0, 6).equal(ops::rotary(wider.narrow(3, 0, 6), tables)));
  CHECK(turned.narrow(3, 6, 2).equal(wider.narrow(3, 6, 2)));
  CHECK_THROWS_AS(ops::rotary_frequencies(5, {.theta = 100}), Error);
}

TEST_CASE("Llama 3's scaling keeps high frequencies, divides low ones and blends between") {
  using Kind = ops::RotaryOptions::Kind;
  const at::Tensor plain = ops::rotary_frequencies(128, {.theta = 5e5});
  const at::Tensor scaled =
      ops::rotary_frequencies(128, {.theta = 5e5, .kind = Kind::kLlama3, .factor = 8});
  const at::Tensor turns = plain * (8192 / (2 * std::numbers::pi));
  for (int64_t i = 0; i < 64; ++i) {
    const double f = plain[i].item<double>(), n = turns[i].item<double>();
    const double share = std::clamp((n - 1) / 3, 0.0, 1.0);
    CHECK(scaled[i].item<double>() == Approx(f * share + f / 8 * (1 - share)).epsilon(1e-5));
  }
  CHECK(scaled[0].item<double>() == 1.0);
  CHECK(scaled[63].item<double>() == Approx(plain[63].item<double>() / 8));
  CHECK(at::equal(ops::rotary_frequencies(8, {.theta = 10, .kind = Kind::kLinear, .factor = 2}),
                  ops::rotary_frequencies(8, {.theta = 10}) / 2));
}

TEST_CASE("causal attention refuses shapes that do not fit") {
  const at::Tensor x = at::ones({1, 3, 4, 2}), three = at::ones({1, 3, 3, 2});
  CHECK_THROWS_AS(ops::causal_attention(x, three, three, {}, {}), Error);
  CHECK_THROWS_AS(ops::causal_attention(x, x, x, at::ones({1, 2}, at::kBool), {}), Error);
}

TEST_CASE("packed rows attend, turn and drop out as each alone") {
  at::manual_seed(25);
  const std::vector<int64_t> lengths{3, 1, 4, 6, 2};
  const PackedRows packed = make_packed_rows(lengths, 8);
  const at::Tensor q = at::randn({2, 8, 4, 6}), k = at::randn({2, 8, 2, 6}), v = at::randn_like(k);
  const at::Tensor frequencies = ops::rotary_frequencies(6, {.theta = 100});
  const auto operation = [&](const Tensors& t) {
    const ops::RotaryTables tables = ops::rotary_tables(frequencies, 6);
    return ops::causal_attention(ops::rotary(t[0], tables, packed.positions),
                                 ops::rotary(t[1], tables, packed.positions), t[2], {},
                                 {.scale = 0.3}, packed);
  };
  const auto alone = [&](const Tensors& t) {
    std::vector<Tensors> parts;
    for (const at::Tensor& x : t)
      parts.push_back(x.flatten(0, 1).unsqueeze(0).split_with_sizes(lengths, 1));
    Tensors rows;
    for (size_t i = 0; i < lengths.size(); ++i) {
      const ops::RotaryTables tables = ops::rotary_tables(frequencies, lengths[i]);
      rows.push_back(ops::causal_attention(ops::rotary(parts[0][i], tables),
                                           ops::rotary(parts[1][i], tables), parts[2][i], {},
                                           {.scale = 0.3}));
    }
    return at::cat(rows, 1).view({2, 8, -1});
  };
  check_gradients({q, k, v}, operation, alone, 1e-6);
  check_gradients({q.to(at::kBFloat16), k.to(at::kBFloat16), v.to(at::kBFloat16)}, operation, alone,
                  2e-2);
  const ops::CausalAttentionOptions dropped{.dropout = 0.5, .seed = 3};
  const PackedRows twins = make_packed_rows({4, 4, 4, 4}, 8);
  const at::Tensor ones = at::ones({2, 8, 1, 2});
  const at::Tensor y = ops::causal_attention(ones, ones, ones, {}, dropped, twins);
  CHECK(y.equal(ops::causal_attention(ones, ones, ones, {}, dropped, twins)));
  CHECK_FALSE(y[0].narrow(0, 0, 4).equal(y[0].narrow(0, 4, 4)));  // each row draws independently
  CHECK_THROWS_AS(ops::causal_attention(q, k, v, at::ones({2, 8}, at::kBool), {}, packed), Error);
}
