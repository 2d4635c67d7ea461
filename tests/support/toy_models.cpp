#include "tests/support/toy_models.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace tessera::testing {
namespace {

at::Tensor draw(at::IntArrayRef shape, at::Generator& generator, double scale, at::Device device) {
  return (at::randn(shape, generator) * scale).to(device).set_requires_grad(true);
}

class Embedding : public Block {
 public:
  Embedding(const ToyConfig& config, at::Generator generator, at::Device device)
      : weight_(draw({config.vocabulary, config.hidden}, generator, 0.5, device)) {}
  at::Tensor forward(const at::Tensor&, const MicroBatch& batch) override {
    return at::embedding(weight_, batch.input_ids);
  }
  std::vector<Parameter> parameters() override { return {{"weight", weight_, true}}; }

 private:
  at::Tensor weight_;
};

class Layer : public Block {
 public:
  Layer(const ToyConfig& config, at::Generator generator, at::Device device)
      : norm_(at::ones({config.hidden}, device).set_requires_grad(true)),
        norm_bias_(at::zeros({config.hidden}, device).set_requires_grad(true)),
        up_(draw({2 * config.hidden, config.hidden}, generator, 0.3, device)),
        up_bias_(draw({2 * config.hidden}, generator, 0.1, device)),
        down_(draw({config.hidden, 2 * config.hidden}, generator, 0.3, device)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch&) override {
    const at::Tensor normed = at::layer_norm(hidden, {hidden.size(-1)}, norm_, norm_bias_);
    return hidden + at::linear(at::gelu(at::linear(normed, up_, up_bias_)), down_);
  }
  std::vector<Parameter> parameters() override {
    return {{"norm.weight", norm_, false},
            {"norm.bias", norm_bias_, false},
            {"up.weight", up_, true},
            {"up.bias", up_bias_, false},
            {"down.weight", down_, true}};
  }

 private:
  at::Tensor norm_, norm_bias_, up_, up_bias_, down_;
};

class Head : public Block {
 public:
  Head(const ToyConfig& config, at::Generator generator, at::Device device)
      : weight_(config.tied ? tied_placeholder({config.vocabulary, config.hidden})
                            : draw({config.vocabulary, config.hidden}, generator, 0.5, device)),
        bias_(at::zeros({config.vocabulary}, device).set_requires_grad(true)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch) override {
    const at::Tensor logits = at::linear(hidden, weight_, bias_).to(at::kFloat).flatten(0, 1);
    const at::Tensor labels = batch.labels.flatten();
    const at::Tensor loss =
        at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, kIgnoredLabel);
    const at::Tensor correct = logits.argmax(-1).eq(labels).sum().to(at::kFloat);
    return at::stack({loss, correct});
  }
  std::vector<Parameter> parameters() override {
    return {{"weight", weight_, true}, {"bias", bias_, false}};
  }

 private:
  at::Tensor weight_, bias_;
};

template <typename B>
BlockBuilder builder(const ToyConfig& config, std::string name, size_t index) {
  return {std::move(name), [config, index](const BuildContext& context) -> std::unique_ptr<Block> {
            auto generator =
                at::make_generator<at::CPUGeneratorImpl>(block_seed(context.seed, index));
            return std::make_unique<B>(config, generator, context.device);
          }};
}

}  // namespace

ModelSpec toy_language_model(const ToyConfig& config) {
  ModelSpec model;
  model.name = "toy";
  model.blocks.push_back(builder<Embedding>(config, "embedding", 0));
  for (int64_t i = 0; i < config.layers; ++i) {
    model.blocks.push_back(
        builder<Layer>(config, "layer." + std::to_string(i), static_cast<size_t>(i + 1)));
  }
  model.blocks.push_back(builder<Head>(config, "head", static_cast<size_t>(config.layers + 1)));
  if (config.tied) model.tied.push_back({"embedding", "weight", "head", "weight"});
  return model;
}

MicroBatch toy_micro_batch(const ToyConfig& config, int64_t rows, int64_t sequence, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor ids = at::randint(config.vocabulary, {rows, sequence}, generator, at::kLong);
  const at::Tensor labels = at::randint(config.vocabulary, {rows, sequence}, generator, at::kLong);
  labels.masked_fill_(at::rand({rows, sequence}, generator).lt(0.2), kIgnoredLabel);
  return make_micro_batch(ids, labels);
}

MicroBatch rows_of(const MicroBatch& batch, int64_t first, int64_t rows) {
  MicroBatch part =
      make_micro_batch(batch.input_ids.narrow(0, first, rows), batch.labels.narrow(0, first, rows));
  if (batch.attention_mask.defined()) {
    part.attention_mask = batch.attention_mask.narrow(0, first, rows);
  }
  return part;
}

}  // namespace tessera::testing
