// SPDX-License-Identifier: MIT
#define main gan_main
#include "loops/gan.cpp"
#undef main

#include "example.h"

namespace {

using namespace strangers;

Losses plain() {
  Gan nets = seeded([] { return Gan(); });
  torch::optim::AdamW make(nets.make->parameters(), adamw(1e-3));
  torch::optim::AdamW judge(nets.judge->parameters(), adamw(1e-3));
  Losses losses;
  for (int i = 0; i < 10; ++i) {
    judge.zero_grad();
    const at::Tensor fake = nets.make->forward(noise(i, 0, 1));
    const at::Tensor judged =
        told(nets.judge->forward(images(i, 0, 1)), 1) + told(nets.judge->forward(fake.detach()), 0);
    judged.backward();
    judge.step();
    make.zero_grad();
    const at::Tensor made = told(nets.judge->forward(fake), 1);
    made.backward();
    make.step();
    losses.push_back(judged.item<double>());
    losses.push_back(made.item<double>());
  }
  return losses;
}

const Registered gan(example(
    "gan", [] { return Gan(); }, train, plain));

}  // namespace
