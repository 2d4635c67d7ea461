// SPDX-License-Identifier: MIT
#include "lib/models/packed_prefill.h"

#include <ATen/ATen.h>

#include "tests/support/test.hpp"

using namespace tessera;

TEST_CASE("rows that lie end to end are attended to as when they are filled up") {
  at::manual_seed(8);
  const std::vector<int64_t> lengths{3, 70, 1, 9, 5};
  const int64_t tokens = 88, heads = 4, d = 6, rows = 3;
  const PackedRows packed = make_packed_rows(lengths, tokens);
  for (const bool alibi : {false, true}) {
    for (const int64_t key_heads : {heads, int64_t{2}}) {
      if (alibi && key_heads != heads) continue;
      CAPTURE(alibi, key_heads);
      ops::SelfAttention attention{
          .heads = heads, .key_heads = key_heads, .by_head = alibi, .scale = 0.4};
      if (alibi) attention.slopes = at::tensor({0.5, 0.25, 0.1, 0.01}, at::kFloat);
      const at::Tensor qkv = at::randn({1, tokens, (heads + 2 * key_heads) * d});
      const auto of_rows = [&](const at::Tensor& x) { return x.narrow(1, 0, 74); };
      const at::Tensor expected = attend_packed_prefill(qkv, attention, packed, rows);
      const at::Tensor actual =
          tessera::detail::attend_padded_prefill(qkv, attention, packed, rows);
      CHECK(at::allclose(of_rows(actual), of_rows(expected), 1e-5, 1e-5));
      CHECK(actual.isfinite().all().item<bool>());
    }
  }
}
