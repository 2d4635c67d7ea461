// SPDX-License-Identifier: MIT
#define main own_optimizer_main
#include "loops/own_optimizer.cpp"
#undef main

#include "example.h"

namespace {

using namespace strangers;

// AdaBelief parameter by parameter, in doubles where precision matters.
Losses plain() {
  nn::Sequential net = seeded(classifier);
  std::map<std::string, std::pair<at::Tensor, at::Tensor>> state;
  Losses losses;
  for (int i = 0; i < 20; ++i) {
    const MicroBatch batch = rows(i, 0, 1);
    net->zero_grad();
    const at::Tensor now = mean_loss(net->forward(batch.input_ids), batch);
    now.backward();
    const torch::NoGradGuard no_grad;
    for (auto& item : net->named_parameters()) {
      const at::Tensor weight = item.value(), gradient = weight.grad();
      auto& [mean, surprise] = state[item.key()];
      if (!mean.defined()) mean = surprise = torch::zeros_like(weight);
      mean = 0.9 * mean + 0.1 * gradient;
      surprise = 0.999 * surprise + 0.001 * (gradient - mean).square() + 1e-8;
      if (weight.dim() >= 2) weight.mul_(1 - 1e-2 * 0.01);
      weight.sub_(1e-2 * (mean / (1 - std::pow(0.9, i + 1))) /
                  ((surprise / (1 - std::pow(0.999, i + 1))).sqrt() + 1e-8));
    }
    losses.push_back(now.item<double>());
  }
  return losses;
}

const Registered own_optimizer(example("own_optimizer", classifier, train, plain));

}  // namespace
