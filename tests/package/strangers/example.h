// SPDX-License-Identifier: MIT
#pragma once
// A program of examples/loops compared with a plain LibTorch loop: equal losses.
#include "stranger.h"

namespace strangers {

// train(world, config): the example; step(i): the plain loop's forward, backward and update.
inline Program example(const std::string& name,
                       const std::function<Losses(Communicator&, const ParallelConfig&)>& train,
                       const std::function<Losses()>& plain) {
  return {.name = name,
          .plain = [plain] { return Trained{.losses = plain()}; },
          .port =
              [train](Communicator& world, const Layout& layout) {
                return Trained{.losses = train(world, layout.config)};
              }};
}

// train(world, config, net) with a net made by make().
template <typename Make, typename Train>
Program example(const std::string& name, const Make& make, const Train& train,
                const std::function<Losses()>& plain) {
  return example(
      name,
      [make, train](Communicator& world, const ParallelConfig& config) {
        const auto made = seeded(make);
        world.barrier();  // see train_under()
        return train(world, config, made);
      },
      plain);
}

// Steps in plain LibTorch; loss_of(i): over all rows of step i.
inline Losses plain_steps(torch::optim::Optimizer& optimizer, int steps,
                          const std::function<at::Tensor(int)>& loss_of) {
  Losses losses;
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(i);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

inline torch::optim::AdamWOptions adamw(double learning_rate, double weight_decay = 0) {
  return torch::optim::AdamWOptions(learning_rate).weight_decay(weight_decay);
}

}  // namespace strangers
