// SPDX-License-Identifier: MIT
#define main resume_own_loop_main
#include "loops/resume_own_loop.cpp"
#undef main

#include "example.h"

namespace {

using namespace strangers;

Losses plain() {
  nn::Sequential net = seeded(classifier);
  torch::optim::AdamW optimizer(net->parameters(), adamw(1e-2));
  return plain_steps(optimizer, 20, [&](int i) {
    const MicroBatch batch = rows(i + 1, 0, 1);
    return mean_loss(net->forward(batch.input_ids), batch);
  });
}

// Ten steps on one rank with ddp, ten more in the layout.
const Registered resume_own_loop(example(
    "resume_own_loop",
    [](Communicator& world, const ParallelConfig& config) {
      const std::string directory = "resumed." + config.strategy + std::to_string(world.size());
      Losses losses;
      if (world.rank() == 0) {
        std::filesystem::remove_all(directory);
        run_local_ranks(1, [&](Communicator& alone) {
          losses = train(alone, {.strategy = "ddp"}, seeded(classifier), directory);
        });
      }
      world.barrier();
      nn::Sequential other(nn::Linear(8, 32), nn::Tanh(), nn::Linear(32, 3));  // different weights
      for (const double loss : train(world, config, other, directory)) losses.push_back(loss);
      return losses;
    },
    plain));

}  // namespace
