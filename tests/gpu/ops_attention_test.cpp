// SPDX-License-Identifier: MIT
#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "lib/ops/reference.h"
#include "tessera/ops/functional.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

struct Shape {
  int64_t batch, sequence, heads, d;
  int64_t key_heads = 0;  // 0: like BLOOM, with ALiBi; else like GPT-2 and Llama
};

// Head sizes with a row-by-row kernel.
const std::vector<int64_t> kHeadsByRow{64, 80};

ops::SelfAttention attention_of(const Shape& s) {
  if (s.key_heads == 0) return ops::alibi(ops::alibi_slopes(s.heads).to(at::kCUDA), s.d);
  return {.heads = s.heads, .key_heads = s.key_heads, .scale = 0.7 / std::sqrt(double(s.d))};
}

PackedRows packed_on_gpu(std::vector<int64_t> lengths, int64_t sequence) {
  MicroBatch batch;
  batch.packed = make_packed_rows(std::move(lengths), sequence);
  return batch.to(at::kCUDA).packed;
}

void check_attention(const Shape& s, at::ScalarType type, const at::Tensor& mask,
                     const PackedRows& packed = {}) {
  INFO("batch " << s.batch << " sequence " << s.sequence << " heads " << s.heads << " of "
                << s.key_heads << " keys, d " << s.d << " type " << at::toString(type)
                << (mask.defined() ? " masked" : "") << (packed.defined() ? " packed" : ""));
  const auto options = at::TensorOptions(at::kCUDA);
  const ops::SelfAttention attention = attention_of(s);
  const int64_t columns = (s.heads + 2 * attention.key_heads) * s.d;
  const at::Tensor qkv = at::randn({s.batch, s.sequence, columns}, options).to(type);
  const at::Tensor gradient = at::randn({s.batch, s.sequence, s.heads * s.d}, options).to(type);
  const auto mine = ops::attention_forward(qkv, attention, mask, packed);
  const at::Tensor dqkv = ops::attention_backward(gradient, qkv, attention, mask, mine, packed);
  const at::Tensor exact = qkv.to(at::kDouble);
  const auto expected = ops::reference::attention_forward(exact, attention, mask, packed);
  const at::Tensor dexpected = ops::reference::attention_backward(
      gradient.to(at::kDouble), exact, attention, mask, expected, packed);
  const double tolerance = type == at::kBFloat16 ? 1e-2 : type == at::kHalf ? 2e-3 : 1e-5;
  CHECK(relative_error(mine.output, expected.output) < tolerance);
  const auto a = ops::split_heads(dqkv, attention), b = ops::split_heads(dexpected, attention);
  CHECK(relative_error(a.q, b.q) < tolerance);
  CHECK(relative_error(a.k, b.k) < tolerance);
  CHECK(relative_error(a.v, b.v) < tolerance);
  if (mask.defined()) {
    const at::Tensor blind = mask.cumsum(1).eq(0);
    CHECK(mine.output.index({blind}).eq(0).all().item<bool>());
    CHECK(dqkv.isfinite().all().item<bool>());
  }
}

// Zero rows behind the tokens change nothing, bit for bit in 16 bits.
void check_spare_rows(int64_t heads, int64_t d, at::ScalarType type, const PackedRows& packed) {
  const auto options = at::TensorOptions(at::kCUDA);
  const ops::SelfAttention attention = attention_of({1, 1, heads, d});
  const int64_t tokens = packed.positions.numel(), all = packed.first_keys.numel();
  const at::Tensor qkv = at::zeros({all, 3 * heads * d}, options.dtype(type)),
                   gradient = at::zeros({all, heads * d}, options.dtype(type));
  qkv.narrow(0, 0, tokens).normal_();
  gradient.narrow(0, 0, tokens).normal_();
  CHECK(ops::attends_to_sequences(qkv, attention, d, {}, packed) ==
        (type != at::kFloat && std::ranges::count(kHeadsByRow, d) == 0));
  if (type == at::kFloat) return;
  const auto given = [&](const at::Tensor& x) {
    return x.narrow(0, 0, tokens).view({1, tokens, x.size(1)});
  };
  const auto whole = [&](const at::Tensor& x) { return x.view({-1, packed.sequence, x.size(1)}); };
  const auto plain = ops::attention_forward(given(qkv), attention, {}, packed);
  const auto spare = ops::attention_forward(whole(qkv), attention, {}, packed);
  CHECK(given(spare.output.flatten(0, 1)).equal(plain.output));
  const at::Tensor a =
      ops::attention_backward(given(gradient), given(qkv), attention, {}, plain, packed);
  const at::Tensor b =
      ops::attention_backward(whole(gradient), whole(qkv), attention, {}, spare, packed);
  CHECK(relative_error(given(b.flatten(0, 1)), a) < 1e-4);
}

}  // namespace

TEST_CASE("attention on the GPU, heads of bloom-560m, 3b and 7b1") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(31);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const Shape& s : {Shape{2, 512, 16, 64}, Shape{2, 130, 16, 64}, Shape{1, 512, 32, 80},
                           Shape{2, 64, 32, 128}}) {
      check_attention(s, type, {});
    }
  }
}

TEST_CASE("attention on the GPU without ALiBi, one key head for one or several queries") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(36);
  const PackedRows rows = packed_on_gpu({100, 1, 27, 64, 64, 2, 40, 86}, 128);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const auto& [heads, key_heads, d] :
         {std::tuple{12, 12, 64}, {32, 8, 64}, {24, 8, 128}, {4, 1, 80}}) {
      check_attention({2, 512, heads, d, key_heads}, type, {});
      check_attention({3, 130, heads, d, key_heads}, type, {});
      check_attention({3, 128, heads, d, key_heads}, type, {}, rows);
    }
  }
  check_attention({2, 33, 4, 20, 2}, at::kBFloat16, {});
  check_attention({2, 33, 4, 16, 2}, at::kFloat, {});
}

TEST_CASE("attention on the GPU with padding on either side") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(32);
  const at::Tensor position = at::arange(128, at::TensorOptions(at::kCUDA)).unsqueeze(0);
  const auto column = [](std::vector<int64_t> v) {
    return at::tensor(v).to(at::kCUDA).unsqueeze(1);
  };
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    check_attention({3, 128, 16, 64}, type, position.ge(column({0, 40, 128})));
    check_attention({3, 128, 32, 80}, type, position.lt(column({128, 60, 1})));
  }
}

TEST_CASE("attention on the GPU in shapes and types without a graph") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(33);
  check_attention({2, 33, 4, 20}, at::kBFloat16, {});
  check_attention({2, 33, 4, 16}, at::kFloat, {});
}

TEST_CASE("attention on the GPU inside packed rows") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(34);
  const PackedRows rows = packed_on_gpu({100, 1, 27, 64, 64, 2, 40, 86}, 128);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    check_attention({3, 128, 16, 64}, type, {}, rows);
    check_attention({3, 128, 12, 80}, type, {}, rows);
    check_attention({3, 128, 32, 128}, type, {}, rows);
  }
}

TEST_CASE("attention on the GPU inside packed rows whose last sequence is shorter") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(37);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const auto& [heads, d] : {std::pair{16, 64}, {12, 80}, {7, 128}}) {
      check_attention({1, 2 * 128 + 48, heads, d}, type, {},
                      packed_on_gpu({100, 1, 27, 64, 64, 2, 45, 1}, 128));
      check_attention({1, 48, heads, d}, type, {}, packed_on_gpu({2, 45, 1}, 128));
      check_spare_rows(heads, d, type, packed_on_gpu({100, 1, 27, 64, 64, 2, 45, 1}, 128));
      check_attention({1, 3 * 37 + 9, heads, d}, type, {},
                      packed_on_gpu({30, 7, 37, 1, 36, 9}, 37));
    }
  }
  check_attention({1, 300, 16, 64, 4}, at::kBFloat16, {}, packed_on_gpu({200, 56, 40, 4}, 256));
}

TEST_CASE("attention on the GPU inside packed rows of batches of many sizes") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(35);
  for (const int64_t batch : {4, 5, 3, 6, 1, 12, 31}) {
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < batch; ++i) {
      for (const int64_t length : {57 + i, int64_t{1}, 134 - i}) lengths.push_back(length);
    }
    check_attention({batch, 192, 16, 64}, at::kBFloat16, {}, packed_on_gpu(lengths, 192));
  }
}

TEST_CASE("attention on the GPU row by row") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(38);
  // Lengths around tiles of 64, single and many rows, up to the longest.
  const std::vector<std::vector<int64_t>> batches{
      {1},
      {64},
      {65},
      {1024},
      {63, 64, 65, 1, 127, 128, 129, 2, 191, 192, 193, 300},
      {1024, 1, 513},
      {512, 1, 300}};
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const int64_t d : kHeadsByRow) {
      for (const std::vector<int64_t>& lengths : batches) {
        const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
        const PackedRows packed = packed_on_gpu(lengths, tokens);
        check_attention({1, tokens, 3, d}, type, {}, packed);
        check_attention({1, tokens, 3, d, 3}, type, {}, packed);
        check_attention({1, tokens, 8, d, 2}, type, {}, packed);
      }
      // Equal rows without packing.
      for (const int64_t sequence : {1, 63, 64, 65, 130, 512, 1000, 1024, 1025}) {
        for (const int64_t batch : {1, 3}) check_attention({batch, sequence, 3, d}, type, {});
      }
    }
  }
  for (const int64_t rows : {31, 32, 33, 1023, 1024, 1025, 2100}) {
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < rows; ++i) lengths.push_back(1 + i * 7 % 23 + (i % 97 == 0 ? 64 : 0));
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    check_attention({1, tokens, 2, 64}, at::kBFloat16, {}, packed_on_gpu(lengths, tokens));
  }
}

TEST_CASE("attention on the GPU in rows too long to go row by row") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(39);
  for (const auto& [longest, d] : {std::pair<int64_t, int64_t>{1025, 64}, {513, 80}}) {
    const PackedRows packed = packed_on_gpu({longest, 23}, longest + 23);
    const at::Tensor x = at::empty({1, 1}, at::TensorOptions(at::kCUDA).dtype(at::kHalf));
    CHECK(ops::attends_to_sequences(x, attention_of({1, 1, 2, d}), d, {}, packed));
    check_attention({1, longest + 23, 2, d}, at::kHalf, {}, packed);
  }
}

namespace {
void check_repeats(int64_t d) {
  INFO("d " << d);
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const PackedRows packed = packed_on_gpu({150, 200, 70}, 420);
  const ops::SelfAttention attention = attention_of({1, 420, 4, d});
  const at::Tensor qkv = at::randn({1, 420, 12 * d}, options);
  const at::Tensor gradient = at::randn({1, 420, 4 * d}, options);
  const auto backward = [&](const ops::AttentionOutput& forward) {
    return ops::attention_backward(gradient, qkv, attention, {}, forward, packed);
  };
  const auto forward = ops::attention_forward(qkv, attention, {}, packed);
  const at::Tensor dqkv = backward(forward);
  for (int i = 0; i < 5; ++i) {
    const auto again = ops::attention_forward(qkv, attention, {}, packed);
    CHECK(again.output.equal(forward.output));
    CHECK(backward(again).equal(dqkv));
  }
  // Token 200 is in the second row: a NaN there affects no other row.
  qkv[0][200].fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor lost =
      ops::attention_forward(qkv, attention, {}, packed).output.isnan()[0].any(1);
  CHECK(lost.narrow(0, 200, 150).all().item<bool>());
  CHECK_FALSE(lost.narrow(0, 0, 150).any().item<bool>());
  CHECK_FALSE(lost.narrow(0, 350, 70).any().item<bool>());
}
}  // namespace

TEST_CASE("attention row by row repeats its bits, and passes on what is not finite") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(40);
  for (const int64_t d : kHeadsByRow) check_repeats(d);
}
