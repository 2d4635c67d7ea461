// SPDX-License-Identifier: MIT
// Pairs of rows of equal or different class: a contrastive margin loss (Hadsell et al. 2006).
#include "stranger.h"

namespace {

using namespace strangers;

struct Encoder : nn::Module {  // without clone()
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(hidden(x))); }
  nn::Linear hidden{register_module("hidden", nn::Linear(6, 8))};
  nn::Linear out{register_module("out", nn::Linear(8, 4))};
};

at::Tensor losses(Encoder& net, const MicroBatch& pair) {
  const at::Tensor apart =
      F::pairwise_distance(net.forward(pair.input_ids), net.forward(pair.get("other")));
  const at::Tensor same = pair.labels.to(torch::kFloat);
  return same * apart.square() + (1 - same) * torch::relu(1 - apart).square();
}

std::vector<MicroBatch> pairs() {
  Draw draw(1);
  std::vector<MicroBatch> steps;
  for (int step = 0; step < 3; ++step) {
    steps.push_back(make_micro_batch(draw.normal({12, 6}), draw.integers(2, {12}),
                                     {{"other", draw.normal({12, 6})}}));
  }
  return steps;
}

const Registered siamese(program<Encoder>(
    "siamese",
    {.steps = pairs(),
     .mean = [](Encoder& net, const MicroBatch& pair) { return losses(net, pair).mean(); },
     .model =
         [](const std::shared_ptr<Encoder>& net) {
           return from_callable(with_values([] { return std::make_shared<Encoder>(); }, net),
                                losses, {.reduction = LossReduction::kNone});
         }}));

}  // namespace
