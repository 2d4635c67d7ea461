// SPDX-License-Identifier: MIT
// A custom loop with checkpoints, which resumes under another strategy and number of ranks:
//   resume_own_loop zero3 4; resume_own_loop ddp 2
// Saves every five steps; each start runs ten more steps.
#include "classifier.h"

namespace {

using namespace tessera;
namespace nn = torch::nn;

Losses train(Communicator& world, const ParallelConfig& config, const nn::Sequential& net,
             const std::string& directory) {
  const DeviceMesh mesh(world, {.data = world.size()});
  const auto strategy = make_strategy(config, mesh);
  strategy->attach(from_sequential(net, mean_loss, {.reduction = LossReduction::kMean}),
                   {.device = world.device()}, make_adamw({}));
  int64_t done = 0;
  if (const auto found = find_checkpoint(world, directory); !found.path.empty()) {
    const Checkpoint checkpoint = open_checkpoint(world, found.path);
    load_checkpoint(world, checkpoint, strategy->state());
    strategy->state_restored();
    done = checkpoint.manifest().step;
  }
  CheckpointWriter writer(world, directory, {.total_limit = 2});
  writer.resume_from(done);
  Losses losses;
  for (int64_t step = done + 1; step <= done + 10; ++step) {
    const std::vector batches{rows(step, world.rank(), world.size()).to(world.device())};
    losses.push_back(strategy->forward_backward(batches).loss.item<double>());
    strategy->optimizer_step(/*learning_rate=*/1e-2);
    if (step % 5 == 0) writer.save(step, strategy->state(), /*run=*/"{}");
  }
  return losses;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program(argc, argv, classifier,
                     [](Communicator& world, const auto& config, const auto& net) {
                       return train(world, config, net, "resume_own_loop.checkpoints");
                     });
}
