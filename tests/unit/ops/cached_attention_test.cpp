// SPDX-License-Identifier: MIT
// Attention of one new token per row to the key/value cache.
#include <cmath>

#include "tessera/core/error.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/functional.h"
#include "tessera/ops/kernels.h"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

struct Sizes {
  int64_t heads, key_heads, d, capacity;
  bool alibi = false;
  int64_t window = 0;
};

// Rows of these lengths, token by token, against attention over whole rows; in fp64.
void check_rows(const std::vector<int64_t>& begun, int64_t more, const Sizes& s) {
  CAPTURE(s.heads, s.key_heads, s.d, s.alibi);
  const auto batch = static_cast<int64_t>(begun.size());
  const auto options = at::TensorOptions(at::kDouble);
  const at::Tensor q = at::randn({batch, s.capacity, s.heads, s.d}, options);
  const at::Tensor k = at::randn({batch, s.capacity, s.key_heads, s.d}, options);
  const at::Tensor v = at::randn({batch, s.capacity, s.key_heads, s.d}, options);
  const double scale = 1 / std::sqrt(static_cast<double>(s.d));
  const at::Tensor slopes = s.alibi ? ops::alibi_slopes(s.heads) : at::Tensor();
  const at::Tensor whole =
      s.alibi ? ops::alibi_attention(at::stack({q, k, v}, 3).flatten(2), slopes, {})
              : ops::causal_attention(q, k, v, {}, {.scale = scale, .window = s.window});
  // Memory beyond a row is arbitrary.
  const at::Tensor keys = at::randn_like(k), values = at::randn_like(v);
  const at::Tensor lengths = at::tensor(begun);
  for (int64_t row = 0; row < batch; ++row) {
    keys[row].narrow(0, 0, begun[row]).copy_(k[row].narrow(0, 0, begun[row]));
    values[row].narrow(0, 0, begun[row]).copy_(v[row].narrow(0, 0, begun[row]));
  }
  for (int64_t step = 0; step < more; ++step) {
    const auto next = [&](const at::Tensor& x) {
      const at::Tensor place = lengths.view({batch, 1, 1, 1}).expand({batch, 1, x.size(2), s.d});
      return x.gather(1, place);
    };
    const at::Tensor context =
        ops::attention_to_cache(next(q), next(k), next(v), {keys, values, lengths},
                                {.scale = scale, .slopes = slopes, .window = s.window});
    const at::Tensor expected =
        whole.gather(1, lengths.view({batch, 1, 1}).expand({batch, 1, whole.size(2)}));
    CHECK(context.sizes() == expected.sizes());
    CHECK(at::allclose(context, expected, 1e-10, 1e-10));
    lengths.add_(1);
  }
}

}  // namespace

TEST_CASE("attention to kept keys is attention over the whole row") {
  at::manual_seed(31);
  check_rows({1, 7, 4}, 3, {.heads = 4, .key_heads = 4, .d = 6, .capacity = 10, .alibi = false});
  check_rows({3, 2}, 4, {.heads = 4, .key_heads = 2, .d = 8, .capacity = 7, .alibi = false});
  check_rows({5, 1, 2}, 2, {.heads = 3, .key_heads = 3, .d = 4, .capacity = 9, .alibi = true});
  check_rows({0, 1}, 2, {.heads = 2, .key_heads = 1, .d = 4, .capacity = 4, .alibi = false});
  check_rows({1, 7, 4}, 3, {.heads = 4, .key_heads = 2, .d = 4, .capacity = 10, .window = 3});
}

TEST_CASE("keys that do not fit those kept are refused") {
  const auto tokens = [](int64_t batch, int64_t heads) { return at::randn({batch, 1, heads, 4}); };
  const at::Tensor kept = at::zeros({2, 5, 2, 4}), lengths = at::zeros({2}, at::kLong);
  CHECK_THROWS_AS(
      ops::attention_to_cache(tokens(2, 4), tokens(2, 3), tokens(2, 3), {kept, kept, lengths}, {}),
      Error);
  CHECK_THROWS_AS(
      ops::attention_to_cache(tokens(3, 4), tokens(3, 2), tokens(3, 2), {kept, kept, lengths}, {}),
      Error);
}
