// SPDX-License-Identifier: MIT
#include "tests/support/toy_models.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "tessera/model/lora.h"

namespace tessera::testing {
namespace {

at::Tensor draw(at::IntArrayRef shape, at::Generator& generator, double scale, at::Device device) {
  return (at::randn(shape, generator) * scale).to(device).set_requires_grad(true);
}

// Arguments of a block's constructor.
struct Toy {
  const ToyConfig& config;
  const BuildContext& context;
  const std::string& block;
  size_t index;
};

// A matrix with an optional adapter.
class Matrix {
 public:
  Matrix(const Toy& toy, const std::string& name, const at::Tensor& weight)
      : name_(name + ".weight"), weight_(weight) {
    const BuildContext& context = toy.context;
    const std::string module = toy.block + "." + name;
    if (context.lora == nullptr || !context.lora->targets(module)) return;
    const auto [a, b] = lora_matrices(context, toy.index, module, weight.size(0), weight.size(1));
    a_ = a.to(context.device).set_requires_grad(true);
    b_ = b.to(context.device).set_requires_grad(true);
    scale_ = context.lora->scale();
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& bias = {}) const {
    const at::Tensor y = at::linear(x, weight_, bias);
    return a_.defined() ? y.add(at::linear(at::linear(x, a_), b_), scale_) : y;
  }
  void add_to(std::vector<Parameter>& parameters) const {
    parameters.push_back({name_, weight_});
    if (!a_.defined()) return;
    parameters.push_back({adapter_name(name_, kLoraA), a_});
    parameters.push_back({adapter_name(name_, kLoraB), b_});
  }

 private:
  std::string name_;
  at::Tensor weight_, a_, b_;
  double scale_ = 1;
};

class Embedding : public Block {
 public:
  Embedding(const Toy& toy, at::Generator generator)
      : Embedding(toy.config, generator, toy.context.device) {}
  Embedding(const ToyConfig& config, at::Generator& generator, at::Device device)
      : weight_(draw({config.vocabulary, config.hidden}, generator, 0.5, device)) {}
  at::Tensor forward(const at::Tensor&, const MicroBatch& batch, const BlockContext&) override {
    return at::embedding(weight_, batch.input_ids);
  }
  std::vector<Parameter> parameters() override { return {{"weight", weight_, true}}; }

 private:
  at::Tensor weight_;
};

class Layer : public Block {
 public:
  Layer(const Toy& toy, at::Generator generator) : Layer(toy, generator, toy.context.device) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch&, const BlockContext&) override {
    const at::Tensor normed = at::layer_norm(hidden, {hidden.size(-1)}, norm_, norm_bias_);
    return hidden + down_.forward(at::gelu(up_.forward(normed, up_bias_)));
  }
  std::vector<Parameter> parameters() override {
    std::vector<Parameter> all{{"norm.weight", norm_, false}, {"norm.bias", norm_bias_, false}};
    up_.add_to(all);
    all.push_back({"up.bias", up_bias_, false});
    down_.add_to(all);
    return all;
  }

 private:
  Layer(const Toy& toy, at::Generator& generator, at::Device device)
      : norm_(at::ones({toy.config.hidden}, device).set_requires_grad(true)),
        norm_bias_(at::zeros({toy.config.hidden}, device).set_requires_grad(true)),
        up_(toy, "up", draw({2 * toy.config.hidden, toy.config.hidden}, generator, 0.3, device)),
        up_bias_(draw({2 * toy.config.hidden}, generator, 0.1, device)),
        down_(toy, "down",
              draw({toy.config.hidden, 2 * toy.config.hidden}, generator, 0.3, device)) {}

  at::Tensor norm_, norm_bias_;
  Matrix up_;
  at::Tensor up_bias_;
  Matrix down_;
};

class Head : public Block {
 public:
  Head(const Toy& toy, at::Generator generator) : Head(toy.config, generator, toy.context.device) {}
  Head(const ToyConfig& config, at::Generator& generator, at::Device device)
      : weight_(config.tied ? tied_placeholder({config.vocabulary, config.hidden})
                            : draw({config.vocabulary, config.hidden}, generator, 0.5, device)),
        bias_(at::zeros({config.vocabulary}, device).set_requires_grad(true)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch,
                     const BlockContext&) override {
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
BlockBuilder builder(const ToyConfig& config, const std::string& name, size_t index) {
  return {name, [=](const BuildContext& context) -> std::unique_ptr<Block> {
            return std::make_unique<B>(
                Toy{config, context, name, index},
                at::make_generator<at::CPUGeneratorImpl>(block_seed(context.seed, index)));
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
  std::map<std::string, at::Tensor> extra;
  for (const auto& [name, tensor] : batch.extra) extra[name] = tensor.narrow(0, first, rows);
  MicroBatch part = make_micro_batch(batch.input_ids.narrow(0, first, rows),
                                     batch.labels.narrow(0, first, rows), extra);
  if (batch.attention_mask.defined()) {
    part.attention_mask = batch.attention_mask.narrow(0, first, rows);
  }
  return part;
}

}  // namespace tessera::testing
