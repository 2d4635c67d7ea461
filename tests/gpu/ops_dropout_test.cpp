// SPDX-License-Identifier: MIT
// Dropout on the GPU: its draws, and equal masks in forward and backward.
#include "lib/ops/reference.h"
#include "tessera/ops/functional.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/models/decoder_cases.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

double dropout_tolerance(at::ScalarType type) {
  return type == at::kBFloat16 ? 1.5e-2 : type == at::kHalf ? 3e-3 : 1e-6;
}

// Makes products use one kernel, and attention one order of sums.
struct Deterministic {
  Deterministic() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false); }
  ~Deterministic() { at::globalContext().setDeterministicAlgorithms(false, false); }
};

ops::SelfAttention attention_of(int64_t heads, int64_t key_heads, int64_t d, bool by_head) {
  return {.heads = heads,
          .key_heads = key_heads,
          .by_head = by_head,
          .scale = 0.7 / std::sqrt(double(d)),
          .dropout = {.probability = 0.25, .seed = 91}};
}

// By head, in fp64, with key heads' values repeated for their queries.
struct Parts {
  at::Tensor q, k, v;
  Parts(const at::Tensor& qkv, const ops::SelfAttention& a) {
    const auto [queries, keys, values] = ops::split_heads(qkv.to(at::kDouble), a);
    const auto repeated = [&](const at::Tensor& x) {
      return x.transpose(1, 2).repeat_interleave(a.heads / a.key_heads, 1);
    };
    q = queries.transpose(1, 2), k = repeated(keys), v = repeated(values);
  }
};

// [1 or batch, 1, sequence, sequence]: visible keys of each query.
at::Tensor visible_keys(int64_t sequence, const PackedRows& packed) {
  const at::Tensor key = at::arange(sequence, kOnGpu.dtype(at::kLong));
  const at::Tensor causal = key.unsqueeze(0).le(key.unsqueeze(1)).unsqueeze(0);
  if (!packed.defined()) return causal.unsqueeze(1);
  return causal.logical_and(key.ge(packed.first_keys.unsqueeze(2))).unsqueeze(1);
}

// Factor of each probability: with one-hot values the output is the dropped probabilities.
at::Tensor realised_factors(const at::Tensor& qkv, const ops::SelfAttention& attention,
                            const at::Tensor& visible, const PackedRows& packed) {
  const int64_t sequence = qkv.size(1);
  const at::Tensor numbered = qkv.clone();
  const at::Tensor one_hot = at::eye(sequence, numbered.options());
  ops::split_heads(numbered, attention).v.copy_(one_hot.view({1, sequence, 1, sequence}));
  const at::Tensor dropped = ops::attention_forward(numbered, attention, {}, packed).output;
  const at::Tensor kept = dropped.unflatten(2, {attention.heads, -1}).transpose(1, 2).ne(0);
  const double rate =
      kept.logical_and(visible).sum().item<double>() / visible.expand_as(kept).sum().item<double>();
  CHECK(rate == Approx(1 - attention.dropout.probability).margin(0.01));
  CHECK_FALSE(kept.logical_and(visible.logical_not()).any().item<bool>());
  CHECK_FALSE(kept[0][0].equal(kept[0][1]));  // heads draw independently
  return kept.to(at::kDouble).div_(1 - attention.dropout.probability);
}

void check_attention(const ops::SelfAttention& attention, at::ScalarType type,
                     const PackedRows& packed) {
  constexpr int64_t kSequence = 64, kBatch = 3, kHead = kSequence;
  INFO("heads " << attention.heads << " of " << attention.key_heads << " keys, type "
                << at::toString(type) << (packed.defined() ? " packed" : ""));
  const int64_t columns = (attention.heads + 2 * attention.key_heads) * kHead;
  const at::Tensor qkv = at::randn({kBatch, kSequence, columns}, kOnGpu).to(type);
  const at::Tensor gradient =
      at::randn({kBatch, kSequence, attention.heads * kHead}, kOnGpu).to(type);
  const at::Tensor visible = visible_keys(kSequence, packed);
  const at::Tensor factors = realised_factors(qkv, attention, visible, packed);

  const auto mine = ops::attention_forward(qkv, attention, {}, packed);
  const at::Tensor dqkv = ops::attention_backward(gradient, qkv, attention, {}, mine, packed);
  const at::Tensor exact = leaf(qkv.to(at::kDouble));
  const Parts parts(exact, attention);
  const at::Tensor scores = at::matmul(parts.q, parts.k.transpose(2, 3)) * attention.scale;
  const at::Tensor probability =
      scores.masked_fill(visible.logical_not(), -std::numeric_limits<double>::infinity())
          .softmax(3);
  const at::Tensor expected = at::matmul(probability * factors, parts.v).transpose(1, 2).flatten(2);
  torch::autograd::backward({expected}, {gradient.to(at::kDouble)});
  CHECK(relative_error(mine.output, expected.detach()) < dropout_tolerance(type));
  const auto a = ops::split_heads(dqkv, attention), b = ops::split_heads(exact.grad(), attention);
  CHECK(relative_error(a.q, b.q) < dropout_tolerance(type));
  CHECK(relative_error(a.k, b.k) < dropout_tolerance(type));
  CHECK(relative_error(a.v, b.v) < dropout_tolerance(type));

  // A recomputed block drops the same, whatever ran in between.
  at::rand({5}, kOnGpu);
  CHECK(mine.output.equal(ops::attention_forward(qkv, attention, {}, packed).output));
  ops::SelfAttention other = attention;
  other.dropout.seed = 92;
  CHECK_FALSE(mine.output.equal(ops::attention_forward(qkv, other, {}, packed).output));
  other = attention;
  other.dropout.first_head = attention.heads;  // next rank of a tensor axis
  CHECK_FALSE(mine.output.equal(ops::attention_forward(qkv, other, {}, packed).output));
}

}  // namespace

TEST_CASE("dropout on the GPU draws what the CPU draws, forwards and back") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(51);
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 70, 768}, {5, 24}, {7, 13}}) {
      for (const int64_t first : {int64_t{0}, int64_t{8} * 768, int64_t{7}, int64_t{1} << 35}) {
        INFO(at::toString(type) << " " << at::IntArrayRef(shape) << " from " << first);
        const ops::Dropout dropout{0.3, 0x123456789ABCDEF, first};
        const at::Tensor x = at::rand(shape, kOnGpu).add_(0.5).to(type);
        const at::Tensor residual = at::randn(shape, kOnGpu).to(type);
        const at::Tensor alone = ops::dropout_add(x, {}, dropout);
        const at::Tensor expected = ops::reference::dropout_add(x.cpu(), {}, dropout);
        CHECK(alone.cpu().eq(0).equal(expected.eq(0)));
        CHECK(relative_error(alone, expected) < dropout_tolerance(type));
        const at::Tensor exact = ops::reference::dropout_add(
            x.to(at::kCPU, at::kDouble), residual.to(at::kCPU, at::kDouble), dropout);
        CHECK(relative_error(ops::dropout_add(x, residual, dropout), exact) <
              dropout_tolerance(type));

        ops::ColumnSums sums;
        const at::Tensor bias = at::ones({shape.back()}, x.options());
        CHECK(ops::dropout_backward(x, dropout, bias, sums).equal(alone));
        ops::add_column_sums(sums);
        const at::Tensor columns = alone.to(at::kDouble).reshape({-1, shape.back()}).sum(0) + 1.0;
        CHECK(relative_error(bias, columns) < dropout_tolerance(type));
      }
    }
  }
}

TEST_CASE("attention with dropout on the GPU is its formula with the realised factors") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(52);
  const PackedRows rows = packed_on(at::kCUDA, {30, 34, 1, 63, 20, 44}, 64);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const auto& [heads, key_heads, by_head] :
         {std::tuple{12, 12, false}, {8, 2, false}, {4, 4, true}}) {
      const ops::SelfAttention attention = attention_of(heads, key_heads, 64, by_head);
      check_attention(attention, type, {});
      check_attention(attention, type, rows);
    }
  }
}

TEST_CASE("attention with dropout leaves the device's generator alone") {
  TESSERA_NEEDS_GPUS(1);
  const ops::SelfAttention attention = attention_of(4, 4, 64, false);
  const at::Tensor qkv = at::ones({2, 64, 12 * 64}, kOnGpu.dtype(at::kHalf));
  at::manual_seed(53);
  const at::Tensor next = at::rand({4}, kOnGpu);
  at::manual_seed(53);
  ops::attention_forward(qkv, attention, {});
  CHECK(next.equal(at::rand({4}, kOnGpu)));
}

TEST_CASE("a fused block with dropout on the GPU repeats bit for bit, gradients included") {
  TESSERA_NEEDS_GPUS(1);
  const Deterministic scope;
  at::manual_seed(54);
  for (const DecoderCase& whole : decoder_cases({768, 12, 4, 64, 3072})) {
    const DecoderCase test = with_dropout(whole, /*attention=*/true);
    INFO(test.name);
    DecoderBlockOptions options = test.options;
    if (options.rotary.cos.defined()) {
      options.rotary = {options.rotary.cos.to(at::kCUDA), options.rotary.sin.to(at::kCUDA)};
    }
    const at::Tensor hidden = at::randn({3, 64, 768}, kOnGpu).to(at::kHalf);
    const auto run = [&](const DecoderBlockOptions& with) {
      Tensors weights;
      for (const at::Tensor& w : test.tensors()) {
        weights.push_back(leaf(w.to(at::kCUDA, at::kHalf)));
      }
      const at::Tensor input = leaf(hidden);
      const at::Tensor output = run_decoder(Version::kFused, input, test.with(weights), with, {});
      torch::autograd::backward({output}, {at::ones_like(output)});
      return Tensors{output.detach(), input.grad(), weights.back().grad()};
    };
    const Tensors first = run(options);
    at::rand({5}, kOnGpu);
    const Tensors again = run(options);
    for (size_t i = 0; i < first.size(); ++i) {
      CHECK(again[i].equal(first[i]));
      CHECK(first[i].isfinite().all().item<bool>());
    }
    DecoderBlockOptions other = options;
    other.attention.dropout.seed = 5;
    CHECK(relative_error(run(other)[0], first[0]) > 1e-2);
  }
}
