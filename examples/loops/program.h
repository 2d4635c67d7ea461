// SPDX-License-Identifier: MIT
#pragma once
// Shared main program of this folder:
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace tessera {

using Losses = std::vector<double>;

// make() draws the weights, equal on all ranks; train(world, config, model) returns losses.
template <typename Make, typename Train>
int run_program(int argc, char** argv, const Make& make, const Train& train) {
  torch::manual_seed(1);
  const auto net = make();
  const ParallelConfig config{.strategy = argc > 1 ? argv[1] : "ddp"};
  const JobOptions job{.ranks = argc > 2 ? std::atoi(argv[2]) : 0};
  return run_job(job, [&](Communicator& world, const LaunchInfo&, ControlChannel&) {
    const Losses losses = train(world, config, net);
    if (world.rank() != 0) return;
    for (const double loss : losses) std::printf("loss %.6f\n", loss);
  });
}

// Part `part` of `parts` of a step's rows.
using Rows = std::function<MicroBatch(int64_t step, int64_t part, int64_t parts)>;

// A plain loop for programs about other topics; see own_loop.cpp for more.
struct Steps {
  int count = 20;
  double learning_rate = 1e-2;
};
inline Losses train_steps(Communicator& world, Strategy& strategy, const Rows& rows,
                          const Steps& steps = {}) {
  Losses losses;
  for (int i = 0; i < steps.count; ++i) {
    const std::vector batches{rows(i, world.rank(), world.size()).to(world.device())};
    losses.push_back(strategy.forward_backward(batches).loss.item<double>());
    strategy.optimizer_step(steps.learning_rate);
  }
  return losses;
}

}  // namespace tessera
