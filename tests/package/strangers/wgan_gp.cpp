// SPDX-License-Identifier: MIT
// Critic of a Wasserstein GAN with gradient penalty in its loss (Gulrajani et al. 2017).
#include "stranger.h"

namespace {

using namespace strangers;

struct Critic : nn::Cloneable<Critic> {
  Critic() { reset(); }
  void reset() override {
    up = register_module("up", nn::Linear(6, 8));
    down = register_module("down", nn::Linear(8, 1));
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::tanh(up(x))).squeeze(1); }
  nn::Linear up{nullptr}, down{nullptr};
};

at::Tensor mean(Critic& critic, const MicroBatch& batch) {
  const at::Tensor real = batch.input_ids, fake = batch.get("fake"), share = batch.get("share");
  const at::Tensor between = (share * real + (1 - share) * fake).requires_grad_();
  const at::Tensor slope = torch::autograd::grad({critic.forward(between).sum()}, {between}, {},
                                                 /*retain_graph=*/true, /*create_graph=*/true)[0];
  return (critic.forward(fake) - critic.forward(real)).mean() +
         10 * (slope.norm(2, 1) - 1).square().mean();
}

std::vector<MicroBatch> samples() {
  Draw draw(6);
  std::vector<MicroBatch> steps;
  for (int step = 0; step < 3; ++step) {
    steps.push_back(make_micro_batch(
        draw.normal({12, 6}), torch::zeros({12}),
        {{"fake", draw.normal({12, 6})}, {"share", draw.normal({12, 1}).sigmoid()}}));
  }
  return steps;
}

const Registered wgan_gp(program<Critic>(
    "wgan_gp",
    {.steps = samples(), .mean = mean, .model = [](const std::shared_ptr<Critic>& critic) {
       return from_callable(critic, mean, {.reduction = LossReduction::kMean});
     }}));

}  // namespace
