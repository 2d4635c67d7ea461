// SPDX-License-Identifier: MIT
#define main own_loop_main
#include "loops/own_loop.cpp"
#undef main

#include "example.h"

namespace {

using namespace strangers;

Losses plain() {
  nn::Sequential net = seeded(classifier);
  torch::optim::AdamW optimizer(net->parameters(), adamw(1e-2));
  Losses losses;
  for (int step = 0; step < 20; ++step) {
    const MicroBatch batch = rows(step, 0, 1), held_out = rows(1000, 0, 1);
    optimizer.zero_grad();
    const at::Tensor now = mean_loss(net->forward(batch.input_ids), batch);
    now.backward();
    nn::utils::clip_grad_norm_(net->parameters(), 0.1);
    static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options()).lr(rate(step));
    optimizer.step();
    losses.push_back(now.item<double>());
    const torch::NoGradGuard no_grad;
    if (step % 10 == 9) {
      losses.push_back(mean_loss(net->forward(held_out.input_ids), held_out).item<double>());
    }
  }
  return losses;
}

const Registered own_loop(example("own_loop", classifier, train, plain));

}  // namespace
