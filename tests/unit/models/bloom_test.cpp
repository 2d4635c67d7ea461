// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
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

DecoderConfig tiny() {
  return sized({.vocabulary = 50, .hidden = 24, .heads = 3},
               LanguageModel::preset("bloom-tiny").config());
}

MicroBatch causal_batch() {
  const at::Tensor ids = at::arange(14).reshape({2, 7}).remainder(50);
  return make_micro_batch(ids, (ids + 1).remainder(50));
}

// Weights of a built model as a checkpoint source.
struct MapSource : TensorSource {
  bool has(const std::string& name) const override { return tensors.contains(name); }
  at::Tensor read(const std::string& name, at::IntArrayRef shape) const override {
    check(has(name), ErrorCode::kDataLoss, "missing ", name);
    CHECK(tensors.at(name).sizes() == shape);
    return tensors.at(name).clone();
  }
  std::map<std::string, at::Tensor> tensors;
};

MapSource source_of(const WholeModel& model) {
  MapSource source;
  for (const auto& p : model.parameters()) source.tensors[p.name] = p.tensor.detach().clone();
  return source;
}

}  // namespace

TEST_CASE("BLOOM's blocks have the names of transformers, and norms and biases do not decay") {
  WholeModel model(causal(tiny()), {.seed = 3});
  std::map<std::string, bool> decay;
  int64_t count = 0;
  for (const auto& p : model.parameters()) {
    decay[p.name] = p.weight_decay;
    count += p.tensor.numel();
  }
  CHECK(decay.size() == 5 + 2 * 12);
  CHECK(count == LanguageModel(tiny()).parameter_count(ModelHead::kCausal));
  CHECK(decay.at("transformer.word_embeddings.weight"));
  CHECK_FALSE(decay.at("transformer.word_embeddings_layernorm.weight"));
  CHECK(decay.at("transformer.h.1.self_attention.query_key_value.weight"));
  CHECK_FALSE(decay.at("transformer.h.1.self_attention.query_key_value.bias"));
  CHECK(decay.at("transformer.h.0.mlp.dense_4h_to_h.weight"));
  CHECK_FALSE(decay.at("transformer.h.0.input_layernorm.weight"));
  CHECK_FALSE(decay.at("transformer.ln_f.weight"));
}

TEST_CASE("drawn weights follow the seed and do not depend on which blocks are built") {
  const auto spec = causal(tiny());
  const auto weight = [&](size_t block, uint64_t seed) {
    return spec.blocks[block].build({.seed = seed})->parameters()[2].tensor;
  };
  WholeModel model(spec, {.seed = 3});
  CHECK(at::equal(weight(1, 3), model.blocks()[1]->parameters()[2].tensor));
  CHECK_FALSE(at::equal(weight(1, 3), weight(2, 3)));
  CHECK_FALSE(at::equal(weight(1, 3), weight(1, 4)));
  const at::Tensor table = model.parameters()[0].tensor.detach();
  CHECK(table.std().item<double>() == Approx(0.02).epsilon(0.1));
  CHECK(std::abs(table.mean().item<double>()) < 0.002);
}

TEST_CASE("drawn weights do not depend on the number of threads") {
  DecoderConfig config = tiny();
  config.vocabulary = 100'000;  // several pieces
  const auto spec = causal(config);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor alone = spec.blocks[0].build({.seed = 3})->parameters()[0].tensor.detach();
  at::set_num_threads(3);
  CHECK(at::equal(alone, spec.blocks[0].build({.seed = 3})->parameters()[0].tensor.detach()));
  at::set_num_threads(threads);
  CHECK(alone.std().item<double>() == Approx(0.02).epsilon(0.01));
  CHECK_FALSE(at::equal(alone[0], alone[(1 << 20) / config.hidden]));
}

TEST_CASE("an untrained model's loss is that of guessing") {
  WholeModel model(causal(tiny()), {.seed = 3});
  const at::Tensor loss = model.forward(causal_batch());
  REQUIRE(loss.sizes() == at::IntArrayRef({1}));
  CHECK(loss.item<double>() / 14 == Approx(std::log(50.0)).epsilon(0.02));
}

TEST_CASE("the loss is the cross-entropy of the logits, also without gradients") {
  WholeModel model(causal(tiny()), {.seed = 3});
  MicroBatch batch = causal_batch();
  batch.labels.select(1, 2).fill_(kIgnoredLabel);
  const at::Tensor logits = model.logits(batch);
  CHECK(logits.sizes() == at::IntArrayRef({2, 7, 50}));
  const at::Tensor expected = at::cross_entropy_loss(logits.flatten(0, 1), batch.labels.flatten(),
                                                     {}, at::Reduction::Sum, kIgnoredLabel);
  const double trained = model.forward(batch).item<double>();
  CHECK(trained == Approx(expected.item<double>()).epsilon(1e-6));
  const at::NoGradGuard no_grad;
  CHECK(model.forward(batch).item<double>() == Approx(trained).epsilon(1e-6));
}

TEST_CASE("a tied embedding collects the gradients of both ends") {
  const auto batch = causal_batch();
  auto grad_of = [&](bool tied, const std::string& name, const TensorSource* source) {
    DecoderConfig config = tiny();
    config.tied_head = tied;
    WholeModel model(causal(config), {.seed = 3, .source = source});
    model.forward(batch)[0].backward();
    for (const auto& p : model.parameters()) {
      if (p.name == name) return p.tensor.grad().clone();
    }
    FAIL("no parameter " << name);
    return at::Tensor();
  };
  DecoderConfig untied = tiny();
  untied.tied_head = false;
  WholeModel model(causal(untied), {.seed = 3});
  MapSource source = source_of(model);
  source.tensors["lm_head.weight"] = source.tensors.at("transformer.word_embeddings.weight");
  const std::string table = "transformer.word_embeddings.weight";
  const at::Tensor sum = grad_of(false, table, &source) + grad_of(false, "lm_head.weight", &source);
  const at::Tensor tied = grad_of(true, table, &source);
  CHECK(at::allclose(tied, sum, 1e-4, 1e-6));
}

TEST_CASE("a stored head that differs from the embedding it should be tied to is refused") {
  DecoderConfig untied = tiny();
  untied.tied_head = false;
  WholeModel model(causal(untied), {.seed = 3});
  MapSource source = source_of(model);
  CHECK_THAT(error_of([&] { WholeModel(causal(tiny()), {.source = &source}); }),
             test::contains("tie_word_embeddings"));
}

TEST_CASE("a micro-batch without any target contributes nothing") {
  WholeModel model(causal(tiny()), {.seed = 3});
  MicroBatch batch = causal_batch();
  batch.labels.fill_(kIgnoredLabel);
  const at::Tensor loss = model.forward(batch);
  loss[0].backward();
  CHECK(loss.item<double>() == 0.0);
  for (const auto& p : model.parameters()) CHECK(p.tensor.grad().abs().max().item<double>() == 0.0);
}

TEST_CASE("padding changes nothing: left, right, or none") {
  WholeModel model(causal(tiny()), {.seed = 3});
  const at::Tensor ids = at::arange(5, 10).reshape({1, 5});
  MicroBatch plain, left, right;
  plain.input_ids = ids;
  left.input_ids = at::constant_pad_nd(ids, {3, 0}, 3);
  left.attention_mask = at::constant_pad_nd(at::ones({1, 5}, at::kBool), {3, 0}, false);
  right.input_ids = at::constant_pad_nd(ids, {0, 3}, 3);
  right.attention_mask = at::constant_pad_nd(at::ones({1, 5}, at::kBool), {0, 3}, false);
  const at::Tensor expected = model.logits(plain);
  CHECK(at::allclose(model.logits(left).slice(1, 3), expected, 1e-4, 1e-6));
  CHECK(at::allclose(model.logits(right).slice(1, 0, 5), expected, 1e-4, 1e-6));
}

TEST_CASE("the classifier pools at the rightmost token that is not padding") {
  DecoderConfig config = tiny();
  WholeModel model(classifier(config, 4), {.seed = 3});
  MicroBatch batch;
  //                            left pads            pad inside      no pad        only pads
  batch.input_ids =
      at::tensor({3, 3, 7, 8, 9, 7, 3, 8, 9, 3, 7, 8, 9, 5, 6, 3, 3, 3, 3, 3}, at::kLong)
          .reshape({4, 5});
  const at::Tensor pooled = model.logits(batch);
  CHECK(pooled.sizes() == at::IntArrayRef({4, 4}));
  const std::vector<int64_t> lengths = {5, 4, 5, 1};  // causal: later tokens have no influence
  config.pad_token.reset();                           // pools the rightmost position then
  WholeModel at_the_end(classifier(config, 4), {.seed = 3});
  for (int64_t row = 0; row < 4; ++row) {
    MicroBatch one;
    one.input_ids = batch.input_ids.slice(0, row, row + 1).slice(1, 0, lengths[row]);
    INFO("row " << row);
    CHECK(at::allclose(pooled[row], at_the_end.logits(one)[0], 1e-4, 1e-6));
  }
}

TEST_CASE("the classifier gives loss sum and correct predictions, and skips rows without a label") {
  WholeModel model(classifier(tiny(), 4), {.seed = 3});
  MicroBatch batch = causal_batch();
  const at::Tensor best = model.logits(batch).argmax(-1);
  batch.labels = best.clone();
  at::Tensor result = model.forward(batch);
  REQUIRE(result.sizes() == at::IntArrayRef({2}));
  CHECK(result[1].item<double>() == 2.0);
  const double both = result[0].item<double>();
  batch.labels[1] = kIgnoredLabel;
  result = model.forward(batch);
  CHECK(result[1].item<double>() == 1.0);
  CHECK(result[0].item<double>() < both);
  batch.labels.fill_(kIgnoredLabel);
  result = model.forward(batch);
  result[0].backward();
  CHECK(result[0].item<double>() == 0.0);
  for (const auto& p : model.parameters()) CHECK(p.tensor.grad().abs().max().item<double>() == 0.0);
}

TEST_CASE("a classifier starts from a causal model's weights and draws its score") {
  WholeModel causal_model(causal(tiny()), {.seed = 3});
  const MapSource source = source_of(causal_model);
  WholeModel a(classifier(tiny(), 4), {.seed = 5, .source = &source});
  WholeModel b(classifier(tiny(), 4), {.seed = 5});
  CHECK(a.parameters().back().name == "score.weight");
  CHECK(at::equal(a.parameters().back().tensor, b.parameters().back().tensor));
  CHECK(at::equal(a.parameters()[0].tensor, causal_model.parameters()[0].tensor));
  CHECK_FALSE(at::equal(a.parameters()[0].tensor, b.parameters()[0].tensor));
  CHECK_THROWS_AS(classifier(tiny(), 1), Error);
}

TEST_CASE("operations per token follow the published formula") {
  const auto spec = causal(LanguageModel::preset("bloom-560m").config());
  CHECK(spec.flops_per_token(512) == 6.0 * 559'214'592 + 6.0 * 24 * 1024 * 512);
  DecoderConfig untied = LanguageModel::preset("bloom-560m").config();
  untied.tied_head = false;
  CHECK(causal(untied).flops_per_token(512) == spec.flops_per_token(512));
}
