// SPDX-License-Identifier: MIT
// GPT-2 and Llama as models; tests/parity/huggingface compares their numbers with transformers'.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>

#include "tessera/core/error.h"
#include "tessera/model/whole_model.h"
#include "tessera/models/language_model.h"
#include "tests/support/messages.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;
using tessera::testing::sized;

namespace {

LanguageModel short_vocabulary(const std::string& preset) {
  LanguageModel model = LanguageModel::preset(preset);
  model.config().vocabulary = 50;
  return model;
}

MicroBatch batch_of(const at::Tensor& ids) {
  return make_micro_batch(ids, (ids + 1).remainder(50));
}

MicroBatch some_batch() { return batch_of(at::arange(14).reshape({2, 7}).remainder(50)); }

std::map<std::string, at::Tensor> weights_of(const WholeModel& model) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& p : model.parameters()) tensors[p.name] = p.tensor;
  return tensors;
}

double deviation(const at::Tensor& x) { return x.std().item<double>(); }

// Loss and gradients of one run in one tensor.
at::Tensor run(WholeModel& model, const MicroBatch& batch, bool training, uint64_t seed) {
  const at::Tensor loss = model.forward(batch, {.seed = seed, .training = training});
  loss[0].backward();
  std::vector<at::Tensor> all{loss.detach().flatten()};
  for (const auto& p : model.parameters()) {
    all.push_back(p.tensor.grad().flatten().clone());
    p.tensor.mutable_grad().zero_();
  }
  return at::cat(all);
}

DecoderConfig gpt2_with_dropout() {
  return sized({.vocabulary = 50, .dropout = 0.2}, LanguageModel::preset("gpt2-tiny").config());
}

}  // namespace

TEST_CASE("parameters have transformers' names and layouts") {
  const WholeModel gpt2(short_vocabulary("gpt2-tiny").make_causal(), {.seed = 3});
  auto weights = weights_of(gpt2);
  CHECK(weights.size() == 2 + 2 * 12 + 2);
  CHECK(weights.at("transformer.wpe.weight").sizes() == at::IntArrayRef({1024, 64}));
  CHECK(weights.at("transformer.h.1.attn.c_attn.weight").sizes() == at::IntArrayRef({64, 192}));
  CHECK(weights.at("transformer.h.0.mlp.c_proj.weight").sizes() == at::IntArrayRef({256, 64}));
  CHECK(weights.contains("transformer.ln_f.bias"));
  // Residual projections have a smaller initial deviation: divided by sqrt(2 * 2 layers).
  CHECK(deviation(weights.at("transformer.h.0.mlp.c_fc.weight")) == Approx(0.02).epsilon(0.05));
  CHECK(deviation(weights.at("transformer.h.0.mlp.c_proj.weight")) == Approx(0.01).epsilon(0.05));

  const WholeModel llama(short_vocabulary("llama-mini").make_causal(), {.seed = 3});
  weights = weights_of(llama);
  CHECK(weights.size() == 1 + 4 * 9 + 2);
  CHECK(weights.at("model.layers.3.self_attn.k_proj.weight").sizes() == at::IntArrayRef({32, 96}));
  CHECK(weights.at("model.layers.0.mlp.down_proj.weight").sizes() == at::IntArrayRef({96, 256}));
  CHECK(weights.contains("model.norm.weight"));
  CHECK(weights.contains("lm_head.weight"));
}

TEST_CASE("an untrained causal model is undecided; padding at the end changes nothing") {
  const at::NoGradGuard no_grad;
  for (const std::string name : {"gpt2-tiny", "llama-tiny"}) {
    INFO(name);
    WholeModel model(short_vocabulary(name).make_causal(), {.seed = 3});
    CHECK(model.forward(some_batch()).item<double>() / 14 == Approx(std::log(50)).epsilon(0.05));
    const at::Tensor ids = at::arange(5, 10).reshape({1, 5});
    const at::Tensor expected = model.logits(batch_of(ids));
    MicroBatch right = batch_of(at::constant_pad_nd(ids, {0, 3}, 3));
    CHECK(at::allclose(model.logits(right).slice(1, 0, 5), expected, 1e-4, 1e-6));
    right.attention_mask = right.input_ids.ne(3);
    CHECK(at::allclose(model.logits(right).slice(1, 0, 5), expected, 1e-4, 1e-6));
    MicroBatch left = batch_of(at::constant_pad_nd(ids, {3, 0}, 3));
    left.attention_mask = left.input_ids.ne(3);
    // Positions are column indices; for rotary embedding only distances matter.
    CHECK(at::allclose(model.logits(left).slice(1, 3), expected, 1e-4, 1e-6) ==
          (name == "llama-tiny"));
  }
}

TEST_CASE("GPT-2 and Llama classifiers pool at the rightmost token that is not padding") {
  const at::NoGradGuard no_grad;
  for (const std::string name : {"gpt2-tiny", "llama-tiny"}) {
    INFO(name);
    LanguageModel decoder = short_vocabulary(name);
    WholeModel model(decoder.make_classifier(4), {.seed = 3});
    const at::Tensor ids = at::tensor({7, 3, 8, 9, 3, 7, 8, 9, 5, 6}, at::kLong).reshape({2, 5});
    const at::Tensor pooled = model.logits(batch_of(ids));
    CHECK(pooled.sizes() == at::IntArrayRef({2, 4}));
    decoder.config().pad_token.reset();  // pools the rightmost position then
    WholeModel at_the_end(decoder.make_classifier(4), {.seed = 3});
    const auto last = [&](int64_t row, int64_t length) {
      return at_the_end.logits(batch_of(ids.slice(0, row, row + 1).slice(1, 0, length)))[0];
    };
    CHECK(at::allclose(pooled[0], last(0, 4), 1e-4, 1e-6));
    CHECK(at::allclose(pooled[1], last(1, 5), 1e-4, 1e-6));
    CHECK_THROWS_AS(short_vocabulary(name).make_classifier(1), Error);
  }
}

TEST_CASE("dropout is on in training alone and drawn from the micro-batch's seed") {
  const DecoderConfig config = gpt2_with_dropout();
  WholeModel model(causal(config), {.seed = 3});
  const MicroBatch batch = some_batch();
  const at::Tensor off = run(model, batch, false, 1);
  CHECK(at::equal(off, run(model, batch, false, 2)));
  const at::Tensor on = run(model, batch, true, 1);
  CHECK(at::equal(on, run(model, batch, true, 1)));
  CHECK_FALSE(at::allclose(on, run(model, batch, true, 2)));
  CHECK_FALSE(at::allclose(on, off));
  for (double DecoderConfig::*place :
       {&DecoderConfig::embedding_dropout, &DecoderConfig::attention_dropout,
        &DecoderConfig::residual_dropout}) {
    DecoderConfig less = config;
    less.*place = 0;
    WholeModel other(causal(less), {.seed = 3});
    CHECK_FALSE(at::allclose(on, run(other, batch, true, 1)));
  }
  LanguageModel llama = LanguageModel::preset("llama-tiny");
  DecoderConfig with = llama.config();
  with.attention_dropout = 0.3;
  WholeModel dropping(causal(with), {.seed = 3});
  CHECK_FALSE(at::allclose(run(dropping, batch, true, 1), run(dropping, batch, false, 1)));
  CHECK(at::equal(run(dropping, batch, true, 1), run(dropping, batch, true, 1)));
}

TEST_CASE("GPT-2 refuses a sequence longer than its positions") {
  DecoderConfig config = gpt2_with_dropout();
  config.max_positions = 6;
  WholeModel model(causal(config), {.seed = 3});
  CHECK_THAT(error_of(ErrorCode::kInvalidArgument, [&] { model.forward(some_batch()); }),
             test::contains("7 tokens") && test::contains("6 positions"));
}

TEST_CASE("in Llama a looked-up pad token is not trained") {
  const LanguageModel llama = short_vocabulary("llama-mini");  // the head is not tied
  WholeModel model(llama.make_causal(), {.seed = 3});
  MicroBatch batch = some_batch();
  REQUIRE(batch.input_ids.eq(3).any().item<bool>());
  model.forward(batch)[0].backward();
  const at::Tensor gradient = weights_of(model).at("model.embed_tokens.weight").grad();
  CHECK(gradient[3].eq(0).all().item<bool>());
  CHECK(gradient[4].ne(0).all().item<bool>());
}
