// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>

#include "lib/core/meta.h"
#include "lib/ops/reference.h"
#include "tessera/core/error.h"
#include "tessera/ops/functional.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Hugging Face's form: bias slope * key position counted over visible keys, softmax over visible
// keys.
at::Tensor formula(const at::Tensor& qkv, const at::Tensor& slopes, const at::Tensor& mask) {
  const int64_t batch = qkv.size(0), n = qkv.size(1), heads = slopes.size(0);
  const auto parts = qkv.view({batch, n, heads, 3, -1}).unbind(3);
  const auto head = [&](int i) { return parts[i].transpose(1, 2); };
  const at::Tensor keys = mask.to(at::kDouble);
  const at::Tensor position = (keys.cumsum(1) - 1) * keys;
  at::Tensor scores =
      at::matmul(head(0), head(1).transpose(2, 3)) / std::sqrt(double(parts[0].size(3)));
  scores = scores + slopes.to(at::kDouble).view({1, -1, 1, 1}) * position.view({batch, 1, 1, n});
  const at::Tensor visible = at::ones({n, n}, at::kBool)
                                 .tril()
                                 .view({1, 1, n, n})
                                 .logical_and(mask.view({batch, 1, 1, n}));
  scores = scores.masked_fill(visible.logical_not(), -1e30);
  const at::Tensor p = scores.softmax(3) * visible.any(3, true);
  return at::matmul(p, head(2)).transpose(1, 2).reshape({batch, n, -1});
}

void check_attention(int64_t batch, int64_t n, int64_t heads, int64_t d, const at::Tensor& mask) {
  const at::Tensor slopes = ops::alibi_slopes(heads);
  const at::Tensor keys = mask.defined() ? mask : at::ones({batch, n}, at::kBool);
  const at::Tensor qkv = at::randn({batch, n, heads * 3 * d});
  const auto expected = [&](const Tensors& t) { return formula(t[0], slopes, keys); };
  const auto operation = [&](const Tensors& t) { return ops::alibi_attention(t[0], slopes, mask); };
  check_gradients({qkv}, operation, expected, 2e-6);
  check_gradients({qkv.to(at::kDouble)}, operation, expected, 1e-12);
  check_gradients({qkv.to(at::kBFloat16)}, operation, expected, 1e-2);
}

}  // namespace

TEST_CASE("ALiBi slopes are those of the paper") {
  CHECK(ops::alibi_slopes(8)
            .eq(at::tensor({0.5, 0.25, 0.125, 1 / 16.0, 1 / 32.0, 1 / 64.0, 1 / 128.0, 1 / 256.0}))
            .all()
            .item<bool>());
  const at::Tensor twelve = ops::alibi_slopes(12);
  CHECK(twelve[7].item<float>() == 1 / 256.0F);
  CHECK(twelve[8].item<float>() == Approx(std::exp2(-0.5)));
  CHECK(twelve[11].item<float>() == Approx(std::exp2(-3.5)));
  CHECK_THROWS_AS(ops::alibi_slopes(0), Error);
}

TEST_CASE("ALiBi attention agrees with its formula") {
  at::manual_seed(5);
  check_attention(2, 7, 3, 5, {});
  check_attention(1, 1, 1, 4, {});
  check_attention(2, 33, 12, 8, {});
}

TEST_CASE("ALiBi attention honours key masks on either side") {
  at::manual_seed(6);
  const at::Tensor position = at::arange(9).unsqueeze(0);
  check_attention(2, 9, 4, 4, position.ge(at::tensor({3, 0}).unsqueeze(1)));
  check_attention(2, 9, 4, 4, position.lt(at::tensor({9, 4}).unsqueeze(1)));
}

TEST_CASE("a query that sees nothing gives zero and finite gradients") {
  at::manual_seed(7);
  at::Tensor mask = at::ones({2, 6}, at::kBool);
  mask[0].slice(0, 0, 4).fill_(false);
  mask[1].fill_(false);
  const at::Tensor qkv = leaf(at::randn({2, 6, 2 * 3 * 4}));
  const at::Tensor y = ops::alibi_attention(qkv, ops::alibi_slopes(2), mask);
  CHECK(y[0].slice(0, 0, 4).eq(0).all().item<bool>());
  CHECK(y[1].eq(0).all().item<bool>());
  CHECK(y[0].slice(0, 4).ne(0).all().item<bool>());
  torch::autograd::backward({y}, {at::randn_like(y)});
  CHECK(qkv.grad().isfinite().all().item<bool>());
  CHECK(qkv.grad()[1].eq(0).all().item<bool>());
}

TEST_CASE("attention refuses shapes that do not fit") {
  CHECK_THROWS_AS(ops::alibi_attention(at::ones({1, 2, 10}), ops::alibi_slopes(2), {}), Error);
  CHECK_THROWS_AS(
      ops::alibi_attention(at::ones({1, 2, 12}), ops::alibi_slopes(2), at::ones({2, 1}, at::kBool)),
      Error);
}

TEST_CASE("packed rows attend as each alone") {
  at::manual_seed(7);
  const at::Tensor slopes = ops::alibi_slopes(3), qkv = at::randn({2, 8, 3 * 3 * 4});
  const std::vector<int64_t> lengths{3, 1, 4, 6, 2};
  const PackedRows packed = make_packed_rows(lengths, 8);
  const auto operation = [&](const Tensors& t) {
    return ops::alibi_attention(t[0], slopes, {}, packed);
  };
  const auto alone = [&](const Tensors& t) {
    Tensors rows = t[0].view({1, 16, -1}).split_with_sizes(lengths, 1);
    for (at::Tensor& row : rows) row = formula(row, slopes, at::ones({1, row.size(1)}, at::kBool));
    return at::cat(rows, 1).view({2, 8, -1});
  };
  check_gradients({qkv}, operation, alone, 2e-6);
  check_gradients({qkv.to(at::kBFloat16)}, operation, alone, 1e-2);
  const at::Tensor mask = at::ones({2, 8}, at::kBool);
  CHECK_THROWS_AS(ops::alibi_attention(qkv, slopes, mask, packed), Error);
  CHECK_THROWS_AS(ops::alibi_attention(qkv.view({1, 16, -1}), slopes, {}, packed), Error);
}

TEST_CASE("deterministic attention that forms scores is refused for rows that no GPU holds") {
  const MetaStandsFor stands(at::kCUDA);
  const ops::SelfAttention attention{.heads = 2, .key_heads = 2};
  const auto refusal_of = [&](int64_t tokens) -> std::string {
    try {
      ops::reference::attention_forward(
          at::empty({1, tokens, 48}, at::device(at::kMeta).dtype(at::kBFloat16)), attention, {},
          {});
    } catch (const Error& error) {
      return error.what();
    } catch (const c10::Error&) {  // an operator without a meta kernel, behind the check
    }
    return "";
  };
  CHECK(refusal_of(20'000).empty());
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  CHECK(refusal_of(16'384).empty());
  const std::string refusal = refusal_of(20'000);
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
  CHECK_THAT(refusal, test::contains("--deterministic") && test::contains("20000 x 20000") &&
                          test::contains("at most 16384 tokens"));
}
