// SPDX-License-Identifier: MIT
// Muon for a network's hidden matrices, and AdamW with its own rate for everything else. LibTorch's
// C++ API has no Muon, so it is written out after torch/optim/_muon.py.
#include "stranger.h"

namespace {

using namespace strangers;

constexpr double kRate = 0.01, kMuonRate = 0.02, kMomentum = 0.95, kDecay = 0.1;

struct Speller : nn::Cloneable<Speller> {
  Speller() { reset(); }
  void reset() override {
    embedding = register_module("embedding", nn::Embedding(9, 6));
    wide = register_module("wide", nn::Linear(6, 16));
    narrow = register_module("narrow", nn::Linear(16, 6));
    head = register_module("head", nn::Linear(6, 9));
  }
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor x = embedding(ids).mean(1);
    return head(x + narrow(torch::tanh(wide(x))));
  }
  nn::Embedding embedding{nullptr};
  nn::Linear wide{nullptr}, narrow{nullptr}, head{nullptr};
};

at::Tensor loss(const at::Tensor& scores, const MicroBatch& batch) {
  return F::cross_entropy(scores, batch.labels);
}

std::vector<MicroBatch> rows() {
  Draw draw(21);
  std::vector<MicroBatch> steps;
  for (int step = 0; step < 4; ++step) {
    steps.push_back(make_micro_batch(draw.integers(9, {12, 3}), draw.integers(9, {12})));
  }
  return steps;
}

void muon_step(const at::Tensor& weight, at::Tensor& momentum) {
  const at::NoGradGuard no_grad;
  if (!momentum.defined()) momentum = at::zeros_like(weight);
  momentum.lerp_(weight.grad(), 1 - kMomentum);
  at::Tensor x = weight.grad().lerp(momentum, kMomentum).to(at::kBFloat16);
  const bool upright = x.size(0) > x.size(1);
  if (upright) x = x.t();
  x = x / x.norm().clamp_min(1e-7);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, -4.7750, 2.0315), x, 3.4445);
  }
  const double tall = double(weight.size(0)) / double(weight.size(1));
  weight.mul_(1 - kMuonRate * kDecay);
  weight.add_(upright ? x.t() : x, -kMuonRate * std::sqrt(std::max(1.0, tall)));
}

Trained plain() {
  const auto net = seeded([] { return std::make_shared<Speller>(); });
  std::vector<at::Tensor> matrices{net->wide->weight, net->narrow->weight}, momenta(2), decaying,
      others;
  for (const auto& item : net->named_parameters()) {
    const bool hidden = item.key() == "wide.weight" || item.key() == "narrow.weight";
    if (!hidden) (item.value().dim() == 2 ? decaying : others).push_back(item.value());
  }
  const auto options = [](double decay) {
    return torch::optim::AdamWOptions(kRate).weight_decay(decay);
  };
  torch::optim::AdamW tables(decaying, options(kDecay)), rest(others, options(0));
  Trained trained;
  for (const MicroBatch& batch : rows()) {
    net->zero_grad();
    const at::Tensor mean = loss(net->forward(batch.input_ids), batch);
    mean.backward();
    for (size_t i = 0; i < matrices.size(); ++i) muon_step(matrices[i], momenta[i]);
    tables.step();
    rest.step();
    trained.losses.push_back(mean.item<double>());
  }
  trained.weights = weights_of(*net);
  return trained;
}

const Registered muon_speller({
    .name = "muon",
    .plain = plain,
    .port =
        [](Communicator& world, const Layout& layout) {
          return train_under<Speller>(
              {.steps = rows(),
               .model =
                   [](const std::shared_ptr<Speller>& net) {
                     return from_module(net, loss, {.reduction = LossReduction::kMean});
                   },
               .optimizer = make_muon({.weight_decay = kDecay, .relative_rate = kMuonRate / kRate},
                                      make_adamw({.weight_decay = kDecay})),
               .learning_rate = kRate},
              world, layout);
        },
    // The bf16 iteration sometimes turns a last bit of the gradient into a bit of bf16.
    .tolerance = 1e-2,
});

}  // namespace
