// SPDX-License-Identifier: MIT
// The way of attention to cut rows that --context_attention auto takes.
#include "lib/models/cut_attention.h"

#include <ATen/ATen.h>

#include "lib/core/meta.h"
#include "lib/ops/piece_attention.h"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

ContextAttention of(int64_t heads, int64_t key_heads, int64_t ranks, bool forms_scores = false) {
  return cut_attention_of({.heads = heads, .key_heads = key_heads}, ranks, forms_scores);
}

}  // namespace

TEST_CASE("auto attends to cut rows by what sends less, and by heads where keys form scores") {
  using enum ContextAttention;
  // llama-3.2-1b: 16, 32 and 64 of 40 head widths.
  CHECK(of(32, 8, 2) == kKeys);
  CHECK(of(32, 8, 4) == kKeys);
  CHECK(of(32, 8, 8) == kHeads);
  CHECK(of(32, 8, 2, /*forms_scores=*/true) == kHeads);
  // As much either way.
  CHECK(of(16, 16, 2) == kHeads);
  CHECK(of(16, 16, 4) == kHeads);
  // No whole heads for every rank.
  CHECK(of(32, 8, 16, true) == kKeys);
  CHECK(of(12, 4, 8, true) == kKeys);
  CHECK(of(12, 6, 4) == kKeys);
}

TEST_CASE("kernels for pieces are those of a GPU in 16 bits without ALiBi and mask") {
  const MetaStandsFor gpu(at::kCUDA);
  const auto queries = [](at::ScalarType dtype) {
    return at::empty({1, 4, 2, 8}, at::dtype(dtype).device(at::kMeta));
  };
  const at::Tensor q = queries(at::kBFloat16);
  CHECK(ops::piece_kernels_take(q, {}));
  CHECK(ops::piece_kernels_take(q, {.window = 3}));
  CHECK(!ops::piece_kernels_take(queries(at::kFloat), {}));
  CHECK(!ops::piece_kernels_take(q, {.slopes = at::ones({2})}));
  CHECK(!ops::piece_kernels_take(q, {.attention_mask = at::ones({1, 4}, at::kBool)}));
  CHECK(!ops::piece_kernels_take(at::empty({1, 4, 2, 8}, at::kBFloat16), {}));
}
