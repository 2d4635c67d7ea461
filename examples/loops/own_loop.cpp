// SPDX-License-Identifier: MIT
// A custom loop with explicit accumulation, clipping, schedule and evaluations.
#include "classifier.h"

namespace {

using namespace tessera;
namespace nn = torch::nn;

double rate(int step) { return 1e-2 * std::min(1.0, (step + 1) / 5.0) * (1 - step / 40.0); }

Losses train(Communicator& world, const ParallelConfig& config, const nn::Sequential& net) {
  const int rank = world.rank(), ranks = world.size();
  const DeviceMesh mesh(world, {.data = ranks});
  const auto strategy = make_strategy(config, mesh);
  strategy->attach(from_sequential(net, mean_loss, {.reduction = LossReduction::kMean}),
                   {.device = world.device()}, make_adamw({}));
  Losses losses;
  for (int step = 0; step < 20; ++step) {
    // Two micro-batches: their gradients add up, on this rank and over all ranks.
    std::vector<MicroBatch> batches;
    for (const int half : {0, 1}) {
      batches.push_back(rows(step, 2 * rank + half, 2 * ranks).to(world.device()));
    }
    const StepResult result = strategy->forward_backward(batches);
    const at::Tensor norm = strategy->grad_norm_squared().sqrt();  // over all ranks
    strategy->scale_gradients((0.1 / (norm + 1e-6)).clamp_max(1));
    strategy->optimizer_step(rate(step));
    losses.push_back(result.loss.item<double>());
    if (step % 10 == 9) {
      const std::vector held_out{rows(1000, rank, ranks).to(world.device())};
      losses.push_back(strategy->evaluate(held_out).loss.item<double>());
    }
  }
  return losses;
}

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv, classifier, train); }
