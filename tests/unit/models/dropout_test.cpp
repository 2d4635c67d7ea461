// SPDX-License-Identifier: MIT
// Positions and masks of the models' dropout, against the papers' forward in plain ATen with Philox
// numbers for the same seeds.
#include <ATen/ATen.h>

#include "lib/core/gradient_columns.h"
#include "lib/models/block_dropout.h"
#include "lib/ops/random.h"
#include "lib/testing/oracle.h"
#include "tessera/ops/functional.h"
#include "tests/support/plain_models.h"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr uint64_t kSeed = 3;
constexpr int64_t kTokenKinds = 19;

// Attention dropout is 0.3.
DecoderConfig dropping(const std::string& family, const Sizes& more = {}) {
  const Sizes ours{.vocabulary = kTokenKinds, .hidden = 24, .heads = 3, .layers = 2};
  return sized({.initializer_range = 0.3, .dropout = 0.3}, sized(more, sized(family, ours)));
}

DecoderConfig dropping_bloom() {
  auto config = dropping("bloom");
  config.residual_dropout = 0.2;
  return config;
}

DecoderConfig tiny_gpt2() {
  auto config = dropping("gpt2", {.inner = 40, .max_positions = 9});
  config.embedding_dropout = 0.1;
  config.residual_dropout = 0.2;
  return config;
}

DecoderConfig tiny_llama() {
  return dropping("llama", {.inner = 40, .key_heads = 1, .head_dim = 8});
}

struct Seeded {
  MicroBatch batch;
  uint64_t seed = 0;
};

Seeded some_batch(uint64_t seed) {
  at::manual_seed(5);
  return {make_micro_batch(at::randint(kTokenKinds, {2, 9}, at::kLong),
                           at::randint(kTokenKinds, {2, 9}, at::kLong)),
          seed};
}

Seeded packed_batch() {
  Seeded given = some_batch(8);
  given.batch.packed = make_packed_rows({3, 1, 5, 4, 2, 3}, 9);
  return given;
}

// Row 0's first real token is predicted by a query without visible keys.
Seeded left_padded_batch() {
  Seeded given = some_batch(9);
  MicroBatch& batch = given.batch;
  batch.attention_mask = at::arange(9).ge(at::tensor({4, 0}).unsqueeze(1));
  batch.labels.masked_fill_(at::arange(9).lt(at::tensor({3, 0}).unsqueeze(1)), kIgnoredLabel);
  return given;
}

OracleGradient gradient(const ModelSpec& model, const PlainForward& forward, const Seeded& given) {
  const auto seeds = std::make_shared<SeedLog>();
  seeds->add(given.batch, given.seed);
  Oracle oracle(model, {.seed = kSeed, .forward = forward, .seeds = seeds});
  return oracle.gradient({{given.batch}}, 1.0, {at::kFloat, at::kDouble});
}

// In fp64 except for the loss, with gradients of all parameters.
void compare(const ModelSpec& model, const PlainForward& plain, const Seeded& batch) {
  const OracleGradient actual = gradient(model, {}, batch),
                       expected = gradient(model, plain, batch);
  CHECK(actual.loss == Approx(expected.loss).epsilon(1e-6));
  const double error = (actual.sum() - expected.sum()).norm().item<double>();
  CHECK(error <= 1e-6 * expected.sum().norm().item<double>());
}

void compare_evaluation(const ModelSpec& with, const ModelSpec& without) {
  for (const MicroBatch& batch : {some_batch(7).batch, packed_batch().batch}) {
    const auto loss = [&](const ModelSpec& model) {
      return Oracle(model, {.seed = kSeed}).evaluate({{batch}}, {}).loss;
    };
    CHECK(loss(with) == loss(without));
  }
}

}  // namespace

TEST_CASE("BLOOM drops probabilities, and what attention and feed-forward add") {
  for (const bool post : {false, true}) {
    DecoderConfig config = dropping_bloom();
    config.residual_post_layernorm = post;
    INFO("residual branches from the norms' outputs: " << post);
    const ModelSpec model = causal(config);
    for (const Seeded& given : {some_batch(7), packed_batch(), left_padded_batch()}) {
      INFO((given.batch.packed.defined()           ? "packed"
            : given.batch.attention_mask.defined() ? "padded on the left"
                                                   : "whole"));
      compare(model, plain_bloom(config, kSeed), given);
    }
  }
}

TEST_CASE("GPT-2 and Llama drop what their configurations say") {
  for (const Seeded& given : {some_batch(7), packed_batch()}) {
    INFO((given.batch.packed.defined() ? "packed" : "whole"));
    compare(causal(tiny_gpt2()), plain_gpt2(tiny_gpt2(), kSeed), given);
    compare(causal(tiny_llama()), plain_llama(tiny_llama(), kSeed), given);
  }
}

TEST_CASE("each of BLOOM's probabilities has its own place, and another seed drops others") {
  const DecoderConfig config = dropping_bloom();
  const double loss = gradient(causal(config), {}, some_batch(7)).loss;
  CHECK(gradient(causal(config), {}, some_batch(7)).loss == loss);
  CHECK(gradient(causal(config), {}, some_batch(8)).loss != Approx(loss));
  for (double DecoderConfig::*place :
       {&DecoderConfig::residual_dropout, &DecoderConfig::attention_dropout}) {
    DecoderConfig less = config;
    less.*place = 0;
    CHECK(gradient(causal(less), {}, some_batch(7)).loss != Approx(loss));
    compare(causal(less), plain_bloom(less, kSeed), some_batch(7));
  }
}

TEST_CASE("evaluations drop nothing") {
  compare_evaluation(causal(dropping_bloom()), causal(dropping("bloom")));
  DecoderConfig gpt2 = tiny_gpt2();
  gpt2.embedding_dropout = gpt2.attention_dropout = gpt2.residual_dropout = 0;
  compare_evaluation(causal(tiny_gpt2()), causal(gpt2));
  DecoderConfig llama = tiny_llama();
  llama.attention_dropout = 0;
  compare_evaluation(causal(tiny_llama()), causal(llama));
}

// As captured work does, which later micro-batches reuse.
TEST_CASE("from seeds in memory a block draws for the micro-batch whose seed was written") {
  const BlockDropout dropout({.seed = kSeed}, 2);
  const MicroBatch batch = some_batch(7).batch;
  const auto training = [](uint64_t seed) { return BlockContext{.seed = seed, .training = true}; };
  BlockContext recorded = training(7);
  recorded.gradient_columns = std::make_shared<GradientColumns>();
  const auto seeds = std::make_shared<RecordedSeeds>(at::kCPU);
  recorded.gradient_columns->seeds = seeds;
  const std::vector<DropoutSite> sites{kContextDropout, kInnerDropout};
  std::vector<ops::Dropout> drops;
  for (const DropoutSite site : sites) drops.push_back(dropout.of(0.3, batch, recorded, site, 24));
  const ops::AttentionDropout attention = dropout.of_attention(0.3, recorded, 3);
  // A recomputed block draws from the same memory.
  const at::Tensor again = dropout.of(0.3, batch, recorded, kInnerDropout, 24).seed_at;
  CHECK(again.const_data_ptr() == drops[1].seed_at.const_data_ptr());
  for (const uint64_t seed : {7, 8, 9}) {
    seeds->write(seed);
    const BlockContext known = training(seed);
    for (size_t i = 0; i < sites.size(); ++i) {
      const at::Tensor x = at::ones({2, 9, 24}).set_requires_grad(true);
      const at::Tensor actual = ops::dropout(x, drops[i]);
      const at::Tensor expected = ops::dropout(x, dropout.of(0.3, batch, known, sites[i], 24));
      CHECK(at::equal(actual, expected));
      actual.sum().backward();
      CHECK(at::equal(x.grad(), expected));
    }
    const ops::AttentionDropout of_known = dropout.of_attention(0.3, known, 3);
    const auto drawn = ops::mixed_seed(of_known.seed, of_known.first_head);
    CHECK(static_cast<uint64_t>(attention.seed_at[0].item<int64_t>()) == drawn);
    CHECK(attention.seed_at[1].item<int64_t>() == 0);
  }
  CHECK(!dropout.of(0, batch, recorded, kContextDropout, 24).seed_at.defined());
  CHECK(!dropout.of(0.3, batch, training(7), kContextDropout, 24).seed_at.defined());
}
