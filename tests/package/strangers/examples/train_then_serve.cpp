// SPDX-License-Identifier: MIT
#define main train_then_serve_main
#include "loops/train_then_serve.cpp"
#undef main

#include "example.h"

namespace {

using namespace strangers;

Losses plain() {
  nn::Sequential net = seeded(classifier);
  torch::optim::AdamW optimizer(net->parameters(), adamw(1e-2));
  Losses losses = plain_steps(optimizer, 20, [&](int i) {
    const MicroBatch batch = rows(i, 0, 1);
    return mean_loss(net->forward(batch.input_ids), batch);
  });
  const torch::NoGradGuard no_grad;
  losses.push_back(net->forward(rows(1000, 0, 1).input_ids).square().sum().item<double>());
  return losses;
}

// Compares weights too: the served model gives equal scores.
const Registered train_then_serve(example(
    "train_then_serve",
    [](Communicator& world, const ParallelConfig& config) {
      const std::string file = "served." + config.strategy + std::to_string(world.size()) + ".pt";
      Losses losses = train(world, config, seeded(classifier), file);
      if (world.rank() != 0) return losses;
      nn::Sequential served = classifier();
      torch::load(served, file);
      const at::Tensor inputs = rows(1000, 0, 1).input_ids;
      const torch::NoGradGuard no_grad;
      const at::Tensor scores = served->forward(inputs);
      losses.push_back(
          serve(file, inputs).equal(scores.argmax(1)) ? scores.square().sum().item<double>() : -1);
      return losses;
    },
    plain));

}  // namespace
