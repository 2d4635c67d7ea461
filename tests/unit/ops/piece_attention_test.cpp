// SPDX-License-Identifier: MIT
#include "lib/ops/piece_attention.h"

#include <ATen/ATen.h>

#include "tessera/ops/attention.h"
#include "tessera/ops/functional.h"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

constexpr int64_t kBatch = 2, kTokens = 12, kHeads = 4, kSize = 6;

struct Given {
  at::Tensor q, k, v;
};

Given given(int64_t key_heads) {
  const auto drawn = [](int64_t heads) {
    return at::randn({kBatch, kTokens, heads, kSize}, at::kDouble);
  };
  return {drawn(kHeads), drawn(key_heads), drawn(key_heads)};
}

// Every piece of 3 queries, one after the other.
at::Tensor by_pieces(const Given& x, ops::PieceOfRows piece, const at::Tensor& first_keys = {}) {
  constexpr int64_t kQueries = 3;
  std::vector<at::Tensor> contexts;
  for (int64_t first = 0; first < kTokens; first += kQueries) {
    piece.first_query = first;
    if (first_keys.defined()) piece.first_keys = first_keys.narrow(1, first, kQueries);
    contexts.push_back(ops::piece_attention(x.q.narrow(1, first, kQueries), x.k, x.v, piece));
  }
  return at::cat(contexts, 1);
}

void check_close(const at::Tensor& actual, const at::Tensor& expected) {
  CHECK((actual - expected).abs().max().item<double>() < 1e-12);
}

}  // namespace

TEST_CASE("pieces of a row attend as the whole row: windows, shared key heads") {
  for (const int64_t key_heads : {4, 2}) {
    const Given x = given(key_heads);
    for (const int64_t window : {0, 1, 4}) {
      check_close(by_pieces(x, {.scale = 0.4, .window = window}),
                  ops::causal_attention(x.q, x.k, x.v, {}, {.scale = 0.4, .window = window}));
    }
  }
}

TEST_CASE("pieces of packed rows see their own row only") {
  const Given x = given(2);
  const PackedRows packed = make_packed_rows({5, 7, 1, 11}, kTokens);
  check_close(by_pieces(x, {.scale = 0.4}, packed.first_keys),
              ops::causal_attention(x.q, x.k, x.v, {}, {.scale = 0.4}, packed));
}

TEST_CASE("pieces of masked rows see no padding, and blind queries give 0") {
  const Given x = given(4);
  at::Tensor mask = at::ones({kBatch, kTokens}, at::kBool);
  mask.narrow(1, 0, 4).select(0, 1).fill_(false);
  mask.narrow(1, 8, 4).select(0, 0).fill_(false);
  check_close(by_pieces(x, {.scale = 0.4, .window = 5, .attention_mask = mask}),
              ops::causal_attention(x.q, x.k, x.v, mask, {.scale = 0.4, .window = 5}));
}

TEST_CASE("pieces of a row attend with ALiBi by the place in the whole row") {
  const Given x = given(4);
  const at::Tensor slopes = ops::alibi_slopes(kHeads);
  const at::Tensor qkv = at::stack({x.q, x.k, x.v}, 3).flatten(2);
  const ops::PieceOfRows piece{.scale = ops::alibi(slopes, kSize).scale, .slopes = slopes};
  check_close(by_pieces(x, piece), ops::alibi_attention(qkv, slopes, {}));
}
