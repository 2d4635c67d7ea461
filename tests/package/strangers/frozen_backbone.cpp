// SPDX-License-Identifier: MIT
// A frozen pretrained backbone with a new head.
#include "stranger.h"

namespace {

using namespace strangers;

struct Tagger : nn::Cloneable<Tagger> {
  Tagger() { reset(); }
  void reset() override {
    backbone = register_module(
        "backbone", nn::Sequential(nn::Linear(6, 8), nn::LayerNorm(nn::LayerNormOptions({8})),
                                   nn::GELU(), nn::Linear(8, 8)));
    head = register_module("head", nn::Linear(8, 3));
    for (at::Tensor& weight : backbone->parameters()) weight.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& x) { return head(torch::tanh(backbone->forward(x))); }
  nn::Sequential backbone{nullptr};
  nn::Linear head{nullptr};
};

at::Tensor loss(const at::Tensor& scores, const MicroBatch& batch) {
  return F::cross_entropy(scores, batch.labels);
}

std::vector<MicroBatch> rows() {
  Draw draw(8);
  std::vector<MicroBatch> steps;
  for (int step = 0; step < 3; ++step) {
    steps.push_back(make_micro_batch(draw.normal({12, 6}), draw.integers(3, {12})));
  }
  return steps;
}

const Registered frozen_backbone(program<Tagger>(
    "frozen_backbone",
    {.steps = rows(),
     .mean = [](Tagger& net,
                const MicroBatch& batch) { return loss(net.forward(batch.input_ids), batch); },
     .model =
         [](const std::shared_ptr<Tagger>& net) {
           return from_module(net, loss, {.reduction = LossReduction::kMean});
         },
     .torch_optimizer =
         [](Tagger& net) {
           return std::make_unique<torch::optim::SGD>(net.head->parameters(),
                                                      torch::optim::SGDOptions(0.1).momentum(0.9));
         }}));

}  // namespace
