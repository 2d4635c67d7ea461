// SPDX-License-Identifier: MIT
// Windowed attention, head norms, and YaRN positions.
#include <cmath>
#include <numbers>

#include "tessera/core/error.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/functional.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Softmax over at most `window` visible keys.
at::Tensor formula(const Tensors& t, const at::Tensor& mask, int64_t window) {
  const int64_t n = t[0].size(1), groups = t[0].size(2) / t[1].size(2);
  const at::Tensor place = at::arange(n), before = place.unsqueeze(1) - place;
  at::Tensor visible = before.ge(0).logical_and(before.lt(window)).unsqueeze(0);
  if (mask.defined()) visible = visible.logical_and(mask.unsqueeze(1));
  std::vector<at::Tensor> columns;
  for (int64_t head = 0; head < t[0].size(2); ++head) {
    const at::Tensor q = t[0].select(2, head), k = t[1].select(2, head / groups);
    const at::Tensor scores = at::matmul(q, k.transpose(1, 2)) * 0.3;
    const at::Tensor p = scores.masked_fill(visible.logical_not(), -1e30).softmax(2) *
                         visible.any(2, /*keepdim=*/true);
    columns.push_back(at::matmul(p, t[2].select(2, head / groups)));
  }
  return at::cat(columns, 2);
}

Tensors queries_keys_values(int64_t batch, int64_t n) {
  return {at::randn({batch, n, 4, 6}), at::randn({batch, n, 2, 6}), at::randn({batch, n, 2, 6})};
}

}  // namespace

TEST_CASE("attention in a window sees so many keys up to its own") {
  at::manual_seed(41);
  for (const int64_t n : {9, 150}) {  // one piece, and several
    const at::Tensor end = at::tensor({n, n / 2}).unsqueeze(1), place = at::arange(n).unsqueeze(0);
    for (const at::Tensor& mask : {at::Tensor(), place.lt(end), place.ge(end - n / 3)}) {
      for (const int64_t window : {2, 4, 40, 149}) {
        INFO("sequence " << n << ", window " << window << (mask.defined() ? ", masked" : ""));
        check_gradients(
            queries_keys_values(2, n),
            [&](const Tensors& t) {
              return ops::causal_attention(t[0], t[1], t[2], mask,
                                           {.scale = 0.3, .window = window});
            },
            [&](const Tensors& t) { return formula(t, mask, window); }, 3e-6);
      }
    }
  }
}

TEST_CASE("windows of packed rows are each row's own") {
  at::manual_seed(42);
  const PackedRows packed = make_packed_rows({3, 5, 8}, 8);
  const Tensors t = queries_keys_values(2, 8);
  const auto row = [&](const at::Tensor& x, int64_t first, int64_t count) {
    return x.flatten(0, 1).unsqueeze(0).narrow(1, first, count);
  };
  const at::Tensor whole =
      ops::causal_attention(t[0], t[1], t[2], {}, {.scale = 0.3, .window = 2}, packed);
  for (const auto& [first, count] : {std::pair{0, 3}, {3, 5}, {8, 8}}) {
    const Tensors alone{row(t[0], first, count), row(t[1], first, count), row(t[2], first, count)};
    CHECK(at::allclose(row(whole, first, count), formula(alone, {}, 2), 1e-5, 1e-6));
  }
}

TEST_CASE("dropout in a window draws as without one") {
  at::manual_seed(43);
  const int64_t n = 80;
  Tensors t = queries_keys_values(1, n);
  t[0].zero_();  // equal scores
  const ops::CausalAttentionOptions all{.dropout = 0.4, .seed = 3};
  ops::CausalAttentionOptions some = all;
  some.window = 33;
  const at::Tensor without = ops::causal_attention(t[0], t[1], t[2], {}, all);
  const at::Tensor within = ops::causal_attention(t[0], t[1], t[2], {}, some);
  CHECK(at::allclose(within.narrow(1, 0, 33), without.narrow(1, 0, 33), 1e-5, 1e-6));
  CHECK_FALSE(at::allclose(within.narrow(1, 33, 10), without.narrow(1, 33, 10), 1e-2, 1e-2));
  CHECK(at::equal(within, ops::causal_attention(t[0], t[1], t[2], {}, some)));
}

TEST_CASE("norms of heads are root-mean-square norms of each, values and gradients") {
  at::manual_seed(44);
  const ops::SelfAttention attention{.heads = 4, .key_heads = 2};
  const Tensors given{at::randn({2, 5, 8 * 6}, at::kDouble), at::randn({6}, at::kDouble),
                      at::randn({6}, at::kDouble)};
  Tensors exact;
  for (const at::Tensor& x : given) exact.push_back(leaf(x));
  auto [q, k, v] = ops::split_heads(exact[0], attention);
  const at::Tensor expected =
      at::cat({ops::rms_norm(q, exact[1], 1e-3), ops::rms_norm(k, exact[2], 1e-3), v}, 2)
          .flatten(2);
  const at::Tensor gradient = at::randn_like(expected);
  torch::autograd::backward({expected}, {gradient});

  const ops::HeadNorms norms{given[1], given[2], 1e-3};
  const at::Tensor normed = given[0].clone();
  const ops::HeadNormInput input = ops::head_norm_(normed, attention, norms);
  CHECK(relative_error(normed, expected) < 1e-12);
  const at::Tensor dqkv = gradient.clone(), dq = at::ones({6}, at::kDouble),
                   dk = at::ones({6}, at::kDouble);
  ops::ColumnSums sums;
  ops::head_norm_backward_(dqkv, attention, norms, input, dq, dk, sums);
  ops::add_column_sums(sums);
  CHECK(relative_error(dqkv, exact[0].grad()) < 1e-12);
  CHECK(relative_error(dq - 1, exact[1].grad()) < 1e-12);
  CHECK(relative_error(dk - 1, exact[2].grad()) < 1e-12);
  CHECK_THROWS_AS(ops::head_norm_(at::ones({2, 5, 47}), attention, norms), Error);
}

TEST_CASE("yarn keeps the fast frequencies, divides the slow ones and blends between") {
  using Kind = ops::RotaryOptions::Kind;
  const ops::RotaryOptions yarn{
      .theta = 1e4, .kind = Kind::kYarn, .factor = 4, .original_positions = 2048};
  const at::Tensor plain = ops::rotary_frequencies(64, {.theta = 1e4}),
                   scaled = ops::rotary_frequencies(64, yarn);
  const auto place = [](double turns) {
    return 64 * std::log(2048 / (turns * 2 * std::numbers::pi)) / (2 * std::log(1e4));
  };
  const double first = std::floor(place(32)), last = std::ceil(place(1));
  CHECK(first == 8);
  CHECK(last == 21);
  for (int64_t i = 0; i < 32; ++i) {
    const double share = 1 - std::clamp((double(i) - first) / (last - first), 0.0, 1.0);
    const double f = plain[i].item<double>();
    CHECK(scaled[i].item<double>() == Approx(f * share + f / 4 * (1 - share)).epsilon(1e-5));
  }
  const ops::RotaryTables tables = ops::rotary_tables(scaled, 7, 1.5);
  CHECK(at::allclose(tables.cos.square() + tables.sin.square(), at::full({7, 32}, 2.25)));
}
