// SPDX-License-Identifier: MIT
#pragma once
// What the programs of this folder share:
//   NAME [STRATEGY [RANKS]]           one process; RANKS: as many threads
//   mpirun -n 4 NAME STRATEGY         four processes
// Rank 0 prints the loss of every step, which is the same under every strategy.
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace tessera {

using Losses = std::vector<double>;

// make() draws the weights, alike on all ranks; train(world, config, what it made) -> losses.
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

// One of `parts` parts of a step's rows.
using Rows = std::function<MicroBatch(int64_t step, int64_t part, int64_t parts)>;

// The loop of the programs that are about something else; own_loop.cpp has more of one.
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
