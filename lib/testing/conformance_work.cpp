// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "tessera/testing/strategy_conformance.h"

namespace tessera::testing {
namespace {

constexpr int64_t kVocabulary = 29, kHidden = 10, kSequence = 5;
constexpr size_t kLayers = 5;

at::Tensor leaf(const at::Tensor& values, const BuildContext& context) {
  return values.to(context.device).set_requires_grad(true);
}

class Embedding : public Block {
 public:
  Embedding(at::Generator generator, const BuildContext& context)
      : weight_(leaf(at::randn({kVocabulary, kHidden}, generator) * 0.5, context)) {}
  at::Tensor forward(const at::Tensor&, const MicroBatch& batch, const BlockContext&) override {
    return at::embedding(weight_, batch.input_ids);
  }
  std::vector<Parameter> parameters() override { return {{"weight", weight_}}; }

 private:
  at::Tensor weight_;
};

class Layer : public Block {
 public:
  Layer(at::Generator generator, const BuildContext& context)
      : norm_(leaf(at::ones({kHidden}), context)),
        weight_(leaf(at::randn({kHidden, kHidden}, generator) * 0.3, context)),
        bias_(leaf(at::randn({kHidden}, generator) * 0.1, context)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch&, const BlockContext&) override {
    const at::Tensor normed = at::layer_norm(hidden, {kHidden}, norm_);
    return hidden + at::tanh(at::linear(normed, weight_, bias_));
  }
  std::vector<Parameter> parameters() override {
    return {{"norm", norm_, false}, {"weight", weight_}, {"bias", bias_, false}};
  }

 private:
  at::Tensor norm_, weight_, bias_;
};

class Head : public Block {
 public:
  Head(at::Generator, const BuildContext& context)
      : weight_(tied_placeholder({kVocabulary, kHidden}, context.device)),
        bias_(leaf(at::zeros({kVocabulary}), context)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch,
                     const BlockContext&) override {
    const at::Tensor logits = at::linear(hidden, weight_, bias_).to(at::kFloat).flatten(0, 1);
    const at::Tensor labels = batch.labels.flatten();
    const at::Tensor loss =
        at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, kIgnoredLabel);
    return at::stack({loss, logits.argmax(-1).eq(labels).sum().to(at::kFloat)});
  }
  std::vector<Parameter> parameters() override {
    return {{"weight", weight_}, {"bias", bias_, false}};
  }

 private:
  at::Tensor weight_, bias_;
};

template <typename B>
BlockBuilder builder(std::string name, size_t index) {
  return {std::move(name), [index](const BuildContext& context) -> std::unique_ptr<Block> {
            return std::make_unique<B>(
                at::make_generator<at::CPUGeneratorImpl>(block_seed(context.seed, index)), context);
          }};
}

MicroBatch draw(int64_t rows, uint64_t seed) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor ids = at::randint(kVocabulary, {rows, kSequence}, generator, at::kLong);
  const at::Tensor labels = at::randint(kVocabulary, {rows, kSequence}, generator, at::kLong);
  labels.masked_fill_(at::rand({rows, kSequence}, generator).lt(0.3), kIgnoredLabel);
  return make_micro_batch(ids, labels);
}

}  // namespace

ConformanceWork conformance_work() {
  ModelSpec model;
  model.name = "conformance";
  model.blocks.push_back(builder<Embedding>("embedding", 0));
  for (size_t i = 1; i <= kLayers; ++i) {
    model.blocks.push_back(builder<Layer>("layer." + std::to_string(i), i));
  }
  model.blocks.push_back(builder<Head>("head", kLayers + 1));
  model.tied.push_back({"embedding", "weight", "head", "weight"});
  return {std::move(model), draw};
}

}  // namespace tessera::testing
