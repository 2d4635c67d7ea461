// SPDX-License-Identifier: MIT
#include "lib/ops/piece_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "lib/core/kept_tensors.h"
#include "lib/core/meta.h"
#include "tests/unit/ops/piece_cases.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr double kTolerance = 1e-12;
const at::TensorOptions kExact = at::kDouble;

std::vector<int64_t> numbers(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kLong).contiguous();
  return {wide.const_data_ptr<int64_t>(), wide.const_data_ptr<int64_t>() + wide.numel()};
}

// Peak of backward of one piece's queries with so many keys before them, on a GPU in 16 bits.
int64_t counted_peak(int64_t before, int64_t piece, int64_t heads, int64_t d) {
  const MetaStandsFor gpu(at::kCUDA);
  const auto options = at::dtype(at::kBFloat16).device(at::kMeta);
  const at::Tensor q = at::empty({1, piece, heads, d}, options).requires_grad_(),
                   kv = at::empty({1, 4 * piece, 2, d}, options).requires_grad_();
  const at::Tensor context = ops::piece_attention(q, kv, {{before, piece}}, {});
  MetaMemoryCounter counter;
  torch::autograd::grad({context}, {q, kv}, {at::empty_like(context)});
  return counter.peak_bytes();
}

}  // namespace

TEST_CASE("a plan counts each query head's gradients of all keys before a piece") {
  const int64_t piece = 256, heads = 8, d = 64, bytes = 2;
  const int64_t more =
      counted_peak(3 * piece, piece, heads, d) - counted_peak(piece, piece, heads, d);
  // Two more pieces of keys: of each query head, and of the one key head.
  const int64_t keys = 2 * (2 * piece) * d * bytes;
  CHECK(more == keys * heads + keys);
}

TEST_CASE("pieces of a row attend as the whole row: windows, shared key heads") {
  for (const int64_t key_heads : {4, 2}) {
    for (const int64_t window : {0, 2, 4}) {
      check_pieces({.key_heads = key_heads, .window = window}, kExact, kTolerance);
      // A query, or a few, at a time.
      check_pieces({.key_heads = key_heads, .window = window, .most_scores = 1}, kExact,
                   kTolerance);
      check_pieces({.key_heads = key_heads, .window = window, .most_scores = 200}, kExact,
                   kTolerance);
    }
  }
}

TEST_CASE("keys before a piece and its own square, merged, attend as the whole row") {
  for (const int64_t key_heads : {4, 2, 1}) {
    for (const int64_t piece : {1, 3, 40}) {
      check_pieces({.piece = piece, .key_heads = key_heads, .in_two_parts = true}, kExact,
                   kTolerance);
      check_pieces({.piece = piece, .key_heads = key_heads, .in_two_parts = true}, at::kFloat,
                   1e-5);
    }
  }
}

TEST_CASE("pieces of packed rows see their own row only") {
  for (const int64_t window : {0, 2}) {
    check_pieces({.window = window, .lengths = {5, 7, 1, 11}}, kExact, kTolerance);
    check_pieces({.window = window, .lengths = {12, 3, 3, 6}, .most_scores = 1}, kExact,
                 kTolerance);
    check_pieces({.window = window, .lengths = {2, 1, 1, 2, 6, 1, 10, 1}}, kExact, kTolerance);
  }
  check_pieces({.key_heads = 4, .lengths = {5, 7, 1, 11}, .alibi = true}, kExact, 1e-6);
}

TEST_CASE("pieces of masked rows see no padding, and blind queries give 0") {
  at::Tensor mask = at::ones({2, 12}, at::kBool);
  mask.narrow(1, 0, 4).select(0, 1).fill_(false);
  mask.narrow(1, 8, 4).select(0, 0).fill_(false);
  check_pieces({.window = 5, .attention_mask = mask}, kExact, kTolerance);
  check_pieces({.key_heads = 4, .attention_mask = mask, .most_scores = 1}, kExact, kTolerance);
}

TEST_CASE("pieces of a row attend with ALiBi by the place in the whole row") {
  check_pieces({.key_heads = 4, .alibi = true}, kExact, 1e-6);
  check_pieces({.alibi = true, .most_scores = 200}, kExact, 1e-6);
}

TEST_CASE("rows without tokens attend to nothing") {
  const at::Tensor q = at::zeros({0, 6, 4, 8}, kExact).requires_grad_();
  const at::Tensor context =
      ops::piece_attention(q, at::zeros({0, 12, 4, 8}, kExact), {{0, 3}, {9, 3}}, {});
  CHECK(context.sizes() == at::IntArrayRef({0, 6, 32}));
  context.sum().backward();
}

// The kernels for rows of any lengths read these numbers; GPUs alone have them.
TEST_CASE("spans of packed rows: the last query of a row's share sees the share's last key") {
  const PackedRows packed = make_packed_rows({5, 7, 2, 1, 1, 8}, 12);
  const std::vector<ops::RowPiece> pieces{{0, 3}, {9, 3}};
  const std::vector<ops::RowSpan> spans = ops::spans_of(pieces, 2, packed);
  REQUIRE(spans.size() == 4);
  // [0, 3) of {0-5, 5-12}, then of {0-2, 2-3, 3-4, 4-12}; [9, 12) of the same two.
  const std::vector<std::vector<int64_t>> queries{{0, 3}, {0, 2, 3}, {0, 3}, {0, 3}},
      keys{{0, 3}, {0, 2, 3}, {0, 7}, {0, 8}};
  const std::vector<int64_t> first_keys{0, 0, 5, 4}, first_queries{0, 0, 3, 3},
      sequences{0, 1, 0, 1}, longest{3, 2, 7, 8};
  for (size_t i = 0; i < spans.size(); ++i) {
    INFO("span " << i);
    CHECK(numbers(spans[i].query_offsets) == queries[i]);
    CHECK(numbers(spans[i].key_offsets) == keys[i]);
    CHECK(spans[i].query_offsets.scalar_type() == at::kInt);
    CHECK(spans[i].first_key == first_keys[i]);
    CHECK(spans[i].keys == keys[i].back());
    CHECK(spans[i].first_query == first_queries[i]);
    CHECK(spans[i].first_sequence == sequences[i]);
    CHECK(spans[i].longest_query == std::min<int64_t>(longest[i], 3));
    CHECK(spans[i].longest_key == longest[i]);
  }
}

TEST_CASE("chunks of a span hold no more pairs than allowed, and each query once") {
  for (const int64_t window : {0, 40}) {
    int64_t queries = 0;
    for (const ops::RowSpan& chunk :
         ops::chunks_of({{100, 100}, {300, 100}}, 2, {}, window, 7000)) {
      INFO("queries " << chunk.first_query << " keys " << chunk.first_key << " " << chunk.keys);
      CHECK(chunk.first_query == queries);
      CHECK(chunk.sequences * chunk.queries * chunk.keys <= 7000);
      const int64_t column = (queries < 100 ? 100 : 200) + queries + chunk.queries;
      CHECK(chunk.first_key + chunk.keys == column);
      if (window > 0) CHECK(chunk.keys < window + chunk.queries);
      queries += chunk.queries;
    }
    CHECK(queries == 200);
  }
}

TEST_CASE("a repeated forward takes the kernels' results that the first one kept") {
  at::manual_seed(77);
  constexpr int64_t kPiece = 8, kHeads = 4, kKeyHeads = 2, kWidth = 8;
  const at::Tensor q = at::randn({2, 2 * kPiece, kHeads, kWidth}),
                   kv = at::randn({2, 4 * kPiece, 2 * kKeyHeads, kWidth});
  const auto run = [&](const std::shared_ptr<KeptTensors>& kept, bool is_again) {
    const Tensors inputs{leaf(q), leaf(kv)};
    const at::Tensor output =
        ops::piece_attention(inputs[0], inputs[1], {{kPiece, kPiece}, {2 * kPiece, kPiece}},
                             {.in_two_parts = true, .kept = kept, .is_again = is_again});
    output.backward(at::linspace(-1, 1, output.numel()).view_as(output));
    return Tensors{output.detach(), inputs[0].grad(), inputs[1].grad()};
  };
  const Tensors expected = run(nullptr, false);
  const auto kept = std::make_shared<KeptTensors>();
  run(kept, false);
  REQUIRE(kept->groups().size() == 1);
  CHECK(kept->groups()[0].size() == 1 + 2 * 3);  // the output, and of two spans what backward reads
  const at::Tensor first = kept->groups()[0][0];
  const Tensors again = run(kept, true);
  CHECK(again[0].is_alias_of(first));
  for (size_t i = 0; i < expected.size(); ++i) CHECK(again[i].equal(expected[i]));
}
