// SPDX-License-Identifier: MIT
// Sinks of attention, and gpt-oss' activation, against plain formulas.
#include "lib/ops/sinks.h"

#include <ATen/ATen.h>

#include <cmath>

#include "lib/ops/clamped_swiglu.h"
#include "tests/unit/ops/piece_cases.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr double kTolerance = 1e-12;
const at::TensorOptions kExact = at::kDouble;

// As at::clamp(), for autograd.
at::Tensor plain_activation(const at::Tensor& gate_up) {
  const auto parts = gate_up.unflatten(-1, {-1, 2}).unbind(-1);
  const at::Tensor gate = parts[0].clamp_max(7), up = parts[1].clamp(-7, 7);
  return (up + 1) * (gate * at::sigmoid(gate * 1.702));
}

}  // namespace

TEST_CASE("a sink takes part of the softmax and gives nothing") {
  at::manual_seed(3);
  const at::Tensor q = at::randn({1, 3, 2, 4}, kExact), k = at::randn({1, 3, 1, 4}, kExact),
                   v = at::randn({1, 3, 1, 4}, kExact),
                   sinks = at::tensor(std::vector<double>{0.7, -0.4});
  const at::Tensor context =
      ops::piece_attention(q, at::cat({k, v}, 2), {{0, 3}}, {.scale = 0.5, .sinks = sinks})
          .view({1, 3, 2, 4});
  for (int64_t head = 0; head < 2; ++head) {
    for (int64_t i = 0; i < 3; ++i) {
      double sum = std::exp(sinks[head].item<double>());
      at::Tensor expected = at::zeros({4}, kExact);
      for (int64_t j = 0; j <= i; ++j) {
        const double p = std::exp(0.5 * q[0][i][head].dot(k[0][j][0]).item<double>());
        sum += p;
        expected += p * v[0][j][0];
      }
      CHECK(relative_error(context[0][i][head], expected / sum) < kTolerance);
    }
  }
}

TEST_CASE("pieces of a row attend with sinks as the whole row: scores formed") {
  for (const int64_t window : {0, 2, 4}) {
    check_pieces({.window = window, .sinks = true}, kExact, kTolerance);
    check_pieces({.window = window, .most_scores = 1, .sinks = true}, kExact, kTolerance);
    check_pieces({.window = window, .lengths = {5, 7, 1, 11}, .sinks = true}, kExact, kTolerance);
  }
  at::Tensor mask = at::ones({2, 12}, at::kBool);
  mask.narrow(1, 0, 4).select(0, 1).fill_(false);
  check_pieces({.window = 5, .attention_mask = mask, .sinks = true}, kExact, kTolerance);
}

TEST_CASE("sinks added to a kernel's results, and their gradients, are those of scores") {
  for (const int64_t key_heads : {4, 2, 1}) {
    for (const int64_t piece : {1, 3, 40}) {
      check_pieces({.piece = piece, .key_heads = key_heads, .in_two_parts = true, .sinks = true},
                   kExact, kTolerance);
      check_pieces({.piece = piece, .key_heads = key_heads, .in_two_parts = true, .sinks = true},
                   at::kFloat, 1e-5);
    }
  }
}

TEST_CASE("sums of packed rows lie by head, then token") {
  at::manual_seed(4);
  const at::Tensor output = at::randn({1, 5, 3, 2}, kExact), sums = at::randn({1, 3, 5}, kExact),
                   sinks = at::randn({3}, kExact), gradient = at::randn({1, 5, 3, 2}, kExact);
  ops::FlashOutput batched{output.clone(), sums}, packed{output.clone(), sums[0]},
      of_cudnn{output.clone(), sums.unsqueeze(3)};
  for (ops::FlashOutput* made : {&batched, &packed, &of_cudnn}) {
    const at::IntArrayRef shape = made->log_sum_exp.sizes();
    const std::vector<int64_t> before = shape.vec();
    ops::add_sinks_(*made, sinks);
    CHECK(made->log_sum_exp.sizes() == at::IntArrayRef(before));
    CHECK(at::equal(made->output, batched.output));
    CHECK(at::equal(made->log_sum_exp.flatten(), batched.log_sum_exp.flatten()));
    CHECK(at::equal(ops::gradient_of_sinks(gradient, *made, sinks),
                    ops::gradient_of_sinks(gradient, batched, sinks)));
  }
}

TEST_CASE("a token's attention to the cache has sinks as the whole row has") {
  at::manual_seed(5);
  const int64_t tokens = 6;
  for (const int64_t window : {0, 3}) {
    const at::Tensor q = at::randn({2, tokens, 4, 6}, kExact),
                     k = at::randn({2, tokens, 2, 6}, kExact),
                     v = at::randn({2, tokens, 2, 6}, kExact), sinks = at::randn({4}, kExact);
    const at::Tensor expected =
        ops::causal_attention(q, k, v, {}, {.scale = 0.3, .window = window, .sinks = sinks});
    const ops::SelfAttention attention{
        .heads = 4, .key_heads = 2, .scale = 0.3, .slopes = {}, .window = window};
    const at::Tensor keys = at::full({2, 9, 2, 6}, 5.0, kExact), values = at::full_like(keys, 7.0);
    for (int64_t i = 0; i < tokens; ++i) {
      const auto of_token = [&](const at::Tensor& x) { return x.narrow(1, i, 1); };
      const at::Tensor context = ops::sink_attention_to_cache(
          of_token(q), of_token(k), of_token(v), {keys, values, at::full({2}, i, at::kLong)},
          attention, sinks);
      CHECK(relative_error(context, of_token(expected)) < kTolerance);
    }
  }
}

TEST_CASE("gates are clamped from above, ups on both sides, and clamped ones have no gradient") {
  at::manual_seed(6);
  const at::Tensor x = at::randn({9, 16}, kExact).mul_(6);
  CHECK(x.slice(1, 0, 16, 2).gt(7).any().item<bool>());
  CHECK(x.slice(1, 0, 16, 2).lt(-7).any().item<bool>());
  CHECK(x.slice(1, 1, 16, 2).gt(7).any().item<bool>());
  CHECK(x.slice(1, 1, 16, 2).lt(-7).any().item<bool>());
  const at::Tensor given = leaf(x), dy = at::randn({9, 8}, kExact);
  const at::Tensor expected = plain_activation(given);
  CHECK(relative_error(ops::clamped_swiglu_forward(x), expected.detach()) < 1e-14);
  CHECK(relative_error(ops::clamped_swiglu_backward(dy, x),
                       torch::autograd::grad({expected}, {given}, {dy})[0]) < 1e-14);
  const at::Tensor half = x.to(at::kBFloat16), wide = half.to(at::kDouble);
  CHECK(relative_error(ops::clamped_swiglu_forward(half), plain_activation(wide)) < 4e-3);
}
